"""Simulated worlds with a known truth: is what a report recommends right there?"""

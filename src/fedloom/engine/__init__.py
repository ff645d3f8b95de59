"""Runs an algorithm written for one client on all of them."""

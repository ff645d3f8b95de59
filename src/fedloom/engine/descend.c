/* Plain descent on a CPU: each client runs through all its steps in one thread.
 *
 * A network is a list of layers. What a layer makes of a batch of n samples lies in one
 * of two layouts: as rows, (n, features), each row padded to whole vectors; or as
 * planes, (channels, height, width * n), where the samples of a pixel lie side by side
 * and each row of pixels is padded. Then a row of a convolution is a product of the
 * filters with rows that are already there, and what is done pixel by pixel fills its
 * vectors with samples.
 *
 * All products are made by two functions: `outer` adds up rows times numbers, `dots`
 * multiplies rows with rows. The gradient of a linear layer is never stored: it goes
 * from the registers into the weights. Its norm is found from the two factors.
 *
 * Compiled with -DREAL_BITS=32 or 64; see fedloom/engine/native.py.
 */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if REAL_BITS == 64
typedef double real;
typedef int64_t whole;
#define EXP exp
#define LOG log
#define TANH tanh
#define SQRT sqrt
#else
typedef float real;
typedef int32_t whole;
#define EXP expf
#define LOG logf
#define TANH tanhf
#define SQRT sqrtf
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define REGISTERS 32
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define REGISTERS 16
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define REGISTERS 32
#else
#define VECTOR_BYTES 16
#define REGISTERS 16
#endif
#define LANES ((int)(VECTOR_BYTES / sizeof(real)))

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef whole ivec __attribute__((vector_size(VECTOR_BYTES)));
/* The same in memory, where it need not be aligned. */
typedef real memory_vec
    __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef whole memory_ivec
    __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* One copy of what is large, so that compiling stays short. */
#if defined(__clang__)
#define ONCE static __attribute__((noinline))
#else
#define ONCE static __attribute__((noinline, noclone))
#endif

INLINE vec load(const real *at) { return *(const memory_vec *)at; }
INLINE void store(real *at, vec v) { *(memory_vec *)at = v; }
INLINE vec all(real x) { return (vec){0} + x; }

/* a where the mask is set, else b. */
INLINE vec choose(ivec mask, vec a, vec b) {
  return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

INLINE ivec lanes(void) {
  ivec lane;
  for (int i = 0; i < LANES; i++) lane[i] = i;
  return lane;
}

INLINE ptrdiff_t padded(ptrdiff_t n) { return (n + LANES - 1) / LANES * LANES; }

/* ---- Products ------------------------------------------------------------------ */

enum { SET, ADD, UPDATE };

/* What becomes of a sum in `outer`. */
typedef struct {
  int kind;
  const real *bias; /* SET: one number per row, or NULL. */
  real *velocity;   /* UPDATE with momentum: of the form of the result; else NULL. */
  real rate, factor, decay, momentum;
} Ending;

ONCE void finish_outer(const Ending *ending, int rows, int vectors, const vec *sums,
                       real *c, ptrdiff_t cm, ptrdiff_t place, ptrdiff_t row) {
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) {
      ptrdiff_t here = place + m * cm + v * LANES;
      vec sum = *sums++;
      if (ending->kind == SET) {
        if (ending->bias) sum += ending->bias[row + m];
      } else if (ending->kind == ADD) {
        sum += load(c + here);
      } else {
        vec w = load(c + here);
        sum = sum * ending->factor + w * ending->decay;
        if (ending->velocity) {
          sum += load(ending->velocity + here) * ending->momentum;
          store(ending->velocity + here, sum);
        }
        sum = w - sum * ending->rate;
      }
      store(c + here, sum);
    }
}

/* c[m][n] = sum over k of a[m * am + k * ak] * b[offset[k] + n], for M rows and V
 * vectors of n. */
INLINE void outer_tile(const int M, const int V, ptrdiff_t depth, const real *a,
                       ptrdiff_t am, ptrdiff_t ak, const real *b,
                       const ptrdiff_t *offset, real *c, ptrdiff_t cm, ptrdiff_t place,
                       int row, const Ending *ending) {
  vec sum[24];
#pragma GCC unroll 24
  for (int i = 0; i < M * V; i++) sum[i] = (vec){0};
  for (ptrdiff_t k = 0; k < depth; k++) {
    const real *from = b + offset[k];
    vec x[4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) x[v] = load(from + v * LANES);
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
      vec factor = all(a[m * am + k * ak]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[m * V + v] += factor * x[v];
    }
  }
  finish_outer(ending, M, V, sum, c, cm, place, row);
}

#if REGISTERS == 32
#define OUTER_ROWS 6
#define OUTER_VECTORS 4
#define DOT_ROWS 5
#define DOT_COLUMNS 5
#else
#define OUTER_ROWS 4
#define OUTER_VECTORS 3
#define DOT_ROWS 3
#define DOT_COLUMNS 4
#endif

/* The i-th of some parts of n that are nearly equal and no larger than `most`. */
INLINE ptrdiff_t parts(ptrdiff_t n, ptrdiff_t most) { return (n + most - 1) / most; }
INLINE ptrdiff_t part_start(ptrdiff_t n, ptrdiff_t count, ptrdiff_t i) {
  return n * i / count;
}

#define OUTER(M, V)                                                                    \
  case M * 8 + V:                                                                      \
    outer_tile(M, V, depth, a + m * am, am, ak, b + n, offset, c, cm, m * cm + n, m,   \
               ending);                                                                \
    break;

/* c (rows, width) from a (rows, depth) and the rows of b at the offsets (depth, width);
 * the width is in whole vectors. */
ONCE void outer(ptrdiff_t rows, ptrdiff_t width, ptrdiff_t depth, const real *a,
                ptrdiff_t am, ptrdiff_t ak, const real *b, const ptrdiff_t *offset,
                  real *c, ptrdiff_t cm, const Ending *ending) {
  ptrdiff_t vectors = width / LANES;
  ptrdiff_t tall = parts(rows, OUTER_ROWS), wide = parts(vectors, OUTER_VECTORS);
  for (ptrdiff_t j = 0; j < wide; j++) {
    ptrdiff_t n = part_start(vectors, wide, j);
    ptrdiff_t v = part_start(vectors, wide, j + 1) - n;
    n *= LANES;
    for (ptrdiff_t i = 0; i < tall; i++) {
      ptrdiff_t m = part_start(rows, tall, i);
      ptrdiff_t count = part_start(rows, tall, i + 1) - m;
      switch (count * 8 + v) {
        OUTER(1, 1) OUTER(2, 1) OUTER(3, 1) OUTER(4, 1)
        OUTER(1, 2) OUTER(2, 2) OUTER(3, 2) OUTER(4, 2)
        OUTER(1, 3) OUTER(2, 3) OUTER(3, 3) OUTER(4, 3)
#if OUTER_ROWS > 4
        OUTER(5, 1) OUTER(6, 1) OUTER(5, 2) OUTER(6, 2) OUTER(5, 3) OUTER(6, 3)
        OUTER(1, 4) OUTER(2, 4) OUTER(3, 4) OUTER(4, 4) OUTER(5, 4) OUTER(6, 4)
#endif
      }
    }
  }
}

/* The sums of the lanes of `count` vectors. */
ONCE void sum_lanes(int count, const vec *v, real *out) {
#if defined(__GNUC__) && !defined(__clang__)
  /* Two vectors become one that holds the sums of their halves, and so on. */
  ivec lane = lanes();
  for (int first = 0; first < count; first += LANES) {
    int left = count - first < LANES ? count - first : LANES;
    vec group[LANES + 1];
    for (int i = 0; i < left; i++) group[i] = v[first + i];
    for (int span = LANES / 2, size = left; span > 0; span /= 2) {
      ivec low = (lane & ~(whole)(span - 1)) + lane, high = low + (whole)span;
      group[size] = (vec){0};
      size = (size + 1) / 2;
      for (int i = 0; i < size; i++)
        group[i] = __builtin_shuffle(group[2 * i], group[2 * i + 1], low) +
                   __builtin_shuffle(group[2 * i], group[2 * i + 1], high);
    }
    for (int i = 0; i < left; i++) out[first + i] = group[0][i];
  }
#else
  for (int i = 0; i < count; i++) {
    real total = 0;
    for (int lane = 0; lane < LANES; lane++) total += v[i][lane];
    out[i] = total;
  }
#endif
}

/* c[m][k] = sum over r and n of a[m * am + r * ar + n] * b[offset[k] + r * br + n]. */
INLINE void dot_tile(const int M, const int K, ptrdiff_t runs, ptrdiff_t width,
                     const real *a, ptrdiff_t am, ptrdiff_t ar, const real *b,
                     ptrdiff_t br, const ptrdiff_t *offset, real *c, ptrdiff_t cm) {
  vec sum[25];
#pragma GCC unroll 25
  for (int i = 0; i < M * K; i++) sum[i] = (vec){0};
  for (ptrdiff_t r = 0; r < runs; r++) {
    const real *left = a + r * ar, *right = b + r * br;
    for (ptrdiff_t n = 0; n < width; n += LANES) {
      vec y[5];
#pragma GCC unroll 5
      for (int k = 0; k < K; k++) y[k] = load(right + offset[k] + n);
#pragma GCC unroll 5
      for (int m = 0; m < M; m++) {
        vec x = load(left + m * am + n);
#pragma GCC unroll 5
        for (int k = 0; k < K; k++) sum[m * K + k] += x * y[k];
      }
    }
  }
  real total[25];
  sum_lanes(M * K, sum, total);
#pragma GCC unroll 5
  for (int m = 0; m < M; m++)
#pragma GCC unroll 5
    for (int k = 0; k < K; k++) c[m * cm + k] = total[m * K + k];
}

#define DOTS(M, K)                                                                     \
  case M * 8 + K:                                                                      \
    dot_tile(M, K, runs, width, a + m * am, am, ar, b, br, offset + k, c + m * cm + k, \
             cm);                                                                      \
    break;

/* c (rows, columns) of the rows of a with those of b at the offsets; each row is `runs`
 * times `width` numbers, in whole vectors. */
ONCE void dots(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t runs, ptrdiff_t width,
                 const real *a, ptrdiff_t am, ptrdiff_t ar, const real *b, ptrdiff_t br,
                 const ptrdiff_t *offset, real *c, ptrdiff_t cm) {
  ptrdiff_t tall = parts(rows, DOT_ROWS), wide = parts(columns, DOT_COLUMNS);
  for (ptrdiff_t j = 0; j < wide; j++) {
    ptrdiff_t k = part_start(columns, wide, j);
    ptrdiff_t across = part_start(columns, wide, j + 1) - k;
    for (ptrdiff_t i = 0; i < tall; i++) {
      ptrdiff_t m = part_start(rows, tall, i);
      ptrdiff_t down = part_start(rows, tall, i + 1) - m;
      switch (down * 8 + across) {
        DOTS(1, 1) DOTS(1, 2) DOTS(1, 3) DOTS(1, 4)
        DOTS(2, 1) DOTS(2, 2) DOTS(2, 3) DOTS(2, 4)
        DOTS(3, 1) DOTS(3, 2) DOTS(3, 3) DOTS(3, 4)
#if DOT_ROWS > 3
        DOTS(4, 1) DOTS(4, 2) DOTS(4, 3) DOTS(4, 4) DOTS(4, 5)
        DOTS(5, 1) DOTS(5, 2) DOTS(5, 3) DOTS(5, 4) DOTS(5, 5)
        DOTS(1, 5) DOTS(2, 5) DOTS(3, 5)
#endif
      }
    }
  }
}

/* ---- The network --------------------------------------------------------------- */

enum { LINEAR, CONVOLUTION, MAX_POOL, MEAN_POOL, PAD, FLATTEN, RELU, TANH_, SIGMOID };
enum { CROSS_ENTROPY, SQUARED_ERROR };
enum { BYTES, SINGLE, DOUBLE };
#define INPUT_BYTES(work)                                                              \
  ((work)->input_kind == BYTES ? 1 : (work)->input_kind == SINGLE ? 4 : 8)

/* As Python gives it; see `_Layer` there. */
typedef struct {
  int64_t kind;
  int64_t channels, height, width; /* of what goes in; rows are (features, 1, 1) */
  int64_t outputs;                 /* units or filters */
  int64_t side, stride;            /* of filters and windows (square); PAD: how wide */
  int64_t weights, bias;           /* where they begin in theta; bias -1: none */
} Layer;

typedef struct {
  const Layer *layers;
  int64_t count;
  int64_t loss, input_kind;
  int64_t clients, size; /* of theta */
  int64_t batch;         /* the most samples of a step */
  const void *inputs;    /* (N, features) */
  const void *targets;   /* (N,) int64 classes, or (N, outputs) real numbers */
  const int64_t *samples; /* (clients, steps, batch) which, of N */
  int64_t samples_client, samples_step;
  const int64_t *sizes; /* (clients, steps) how many of a batch are samples */
  int64_t sizes_client, sizes_step;
  const int64_t *steps; /* (clients,) */
  const int64_t *order; /* (clients,) who is taken first */
  const real *theta; /* (clients, size) */
  int64_t theta_client;
  const real *velocity; /* the same, or NULL */
  int64_t velocity_client;
  real *new_theta, *new_velocity; /* (clients, size) */
  const real *shift, *scale;
  int64_t level_client, level_feature; /* their strides */
  real *losses, *seen;                 /* (clients,) added to */
  double rate, clip, decay, momentum;  /* clip 0: none */
  int64_t next;                        /* the next of `order` */
  /* What models say of samples, where nothing is trained; else NULL. Then samples are
   * (N,), and what is a client elsewhere is a run of them that one model is shown. */
  real *outputs;         /* (N, outputs) */
  const int64_t *starts; /* (clients,) where its samples and outputs begin */
  const int64_t *models; /* (clients,) which of theta it is shown to */
} Work;

/* What one thread keeps of a layer. */
typedef struct {
  Layer is;
  int64_t out_channels, out_height, out_width;
  int is_rows; /* the layout of what comes out */
  int is_in_place;
  int in;          /* the layer whose values go in, in place ones left out; -1: input */
  real *value, *error; /* what comes out, and the gradient there */
  whole *place;        /* MAX_POOL: which of a window */
  real *weights, *bias, *weights_velocity, *bias_velocity;
  real *weights_change, *bias_change;
  ptrdiff_t weights_count; /* in the padded form */
} State;

typedef struct {
  Work *work;
  State *states;
  int count;
  real *input;  /* of all samples of a step */
  real *sample; /* one of them */
  int input_is_rows;
  ptrdiff_t *offsets;
  real *pairs; /* (2, batch, batch) */
  char *memory, *at; /* where it begins, and where what is reserved ends */
} Thread;

static void *reserve(Thread *t, size_t bytes) {
  bytes = (bytes + 127) / 64 * 64; /* one vector of slack */
  char *at = t->at;
  t->at += bytes;
  return t->memory ? at : NULL;
}

static ptrdiff_t most_numbers(const Work *w, int is_rows, ptrdiff_t channels,
                              ptrdiff_t height, ptrdiff_t width) {
  if (is_rows) return w->batch * padded(channels * height * width);
  /* Fewer samples have shorter rows. */
  return channels * height * padded(width * w->batch);
}

/* Hand out the memory; called twice, the first time to see how much it is. */
ONCE void lay_out(Thread *t) {
  Work *w = t->work;
  int is_rows = 1, last = -1;
  for (int i = 0; i < w->count; i++)
    if (w->layers[i].kind == FLATTEN || w->layers[i].kind == CONVOLUTION ||
        w->layers[i].kind == MAX_POOL || w->layers[i].kind == MEAN_POOL ||
        w->layers[i].kind == PAD)
      is_rows = 0;
    else if (w->layers[i].kind == LINEAR)
      break;
  const Layer *first = w->layers;
  ptrdiff_t depth = 1;
  t->input_is_rows = is_rows;
  t->input = reserve(t, sizeof(real) * most_numbers(w, is_rows, first->channels,
                                                    first->height, first->width));
  t->sample = reserve(t, sizeof(real) * first->channels * first->height * first->width);
  t->pairs = reserve(t, sizeof(real) * 2 * w->batch * padded(w->batch));
  for (int i = 0; i < w->count; i++) {
    State *s = &t->states[i];
    Layer is = w->layers[i];
    s->is = is;
    s->in = last;
    s->is_in_place = is.kind >= RELU;
    s->out_channels = is.channels;
    s->out_height = is.height;
    s->out_width = is.width;
    s->weights = s->bias = NULL;
    s->weights_count = 0;
    if (is.kind == LINEAR) {
      ptrdiff_t features = is.channels * is.height * is.width;
      s->out_channels = is.outputs;
      s->out_height = s->out_width = 1;
      s->weights_count = is.outputs * padded(features);
      if (features > depth) depth = features;
      if (is.outputs > depth) depth = is.outputs;
    } else if (is.kind == CONVOLUTION) {
      s->out_channels = is.outputs;
      s->out_height -= is.side - 1;
      s->out_width -= is.side - 1;
      s->weights_count = is.outputs * is.channels * is.side * is.side;
      if (is.channels * is.side * is.side > depth)
        depth = is.channels * is.side * is.side;
      if (is.outputs > depth) depth = is.outputs;
    } else if (is.kind == MAX_POOL || is.kind == MEAN_POOL) {
      s->out_height = (is.height - is.side) / is.stride + 1;
      s->out_width = (is.width - is.side) / is.stride + 1;
    } else if (is.kind == PAD) {
      s->out_height += 2 * is.side;
      s->out_width += 2 * is.side;
    } else if (is.kind == FLATTEN) {
      s->out_channels = is.channels * is.height * is.width;
      s->out_height = s->out_width = 1;
      is_rows = 1;
    }
    s->is_rows = is_rows;
    if (s->is_in_place) {
      s->value = last < 0 ? t->input : t->states[last].value;
      s->error = last < 0 ? NULL : t->states[last].error;
      continue;
    }
    size_t bytes = sizeof(real) * most_numbers(w, is_rows, s->out_channels,
                                               s->out_height, s->out_width);
    s->value = reserve(t, bytes);
    s->error = w->outputs ? NULL : reserve(t, bytes);
    s->place = is.kind == MAX_POOL ? reserve(t, bytes) : NULL;
    if (s->weights_count) {
      size_t size = sizeof(real) * s->weights_count;
      size_t few = sizeof(real) * padded(is.outputs);
      s->weights = reserve(t, size);
      s->weights_velocity = w->velocity ? reserve(t, size) : NULL;
      s->weights_change = is.kind == CONVOLUTION ? reserve(t, size) : NULL;
      s->bias_change = reserve(t, few);
      s->bias_velocity = w->velocity ? reserve(t, few) : NULL;
      s->bias = reserve(t, few);
    }
    last = i;
  }
  t->offsets = reserve(t, sizeof(ptrdiff_t) * (depth > w->batch ? depth : w->batch));
}

static const real *values_into(Thread *t, State *s) {
  return s->in < 0 ? t->input : t->states[s->in].value;
}

/* Rows of offsets that are a fixed step apart. */
static const ptrdiff_t *every(Thread *t, ptrdiff_t count, ptrdiff_t step) {
  for (ptrdiff_t k = 0; k < count; k++) t->offsets[k] = k * step;
  return t->offsets;
}

/* Where the rows of pixels that a row of a convolution sees begin. */
static const ptrdiff_t *seen_by(Thread *t, const Layer *is, ptrdiff_t n) {
  ptrdiff_t row = padded(is->width * n), k = 0;
  for (ptrdiff_t c = 0; c < is->channels; c++)
    for (ptrdiff_t y = 0; y < is->side; y++)
      for (ptrdiff_t x = 0; x < is->side; x++)
        t->offsets[k++] = (c * is->height + y) * row + x * n;
  return t->offsets;
}

/* How many numbers come out of a layer for n samples, padding included. */
static ptrdiff_t numbers_out(const State *s, ptrdiff_t n) {
  if (s->is_rows) return n * padded(s->out_channels * s->out_height * s->out_width);
  return s->out_channels * s->out_height * padded(s->out_width * n);
}

/* Which lanes of a vector are samples, from the b-th on. */
INLINE ivec lanes_below(ptrdiff_t count) {
  return lanes() < (whole)(count > LANES ? LANES : count);
}

ONCE void pool_forward(State *s, const real *in, ptrdiff_t n) {
  const Layer *is = &s->is;
  ptrdiff_t in_row = padded(is->width * n), out_row = padded(s->out_width * n);
  int is_max = is->kind == MAX_POOL;
  real share = (real)1 / (real)(is->side * is->side);
  /* A store may run over into what is written next. */
  for (ptrdiff_t c = 0; c < is->channels; c++)
    for (ptrdiff_t y = 0; y < s->out_height; y++)
      for (ptrdiff_t x = 0; x < s->out_width; x++)
        for (ptrdiff_t b = 0; b < n; b += LANES) {
          const real *from =
              in + (c * is->height + y * is->stride) * in_row + x * is->stride * n + b;
          ptrdiff_t to = (c * s->out_height + y) * out_row + x * n + b;
          vec best = load(from);
          ivec place = (ivec){0};
          for (ptrdiff_t k = 1; k < is->side * is->side; k++) {
            vec v = load(from + k / is->side * in_row + k % is->side * n);
            if (is_max) {
              ivec is_more = (v > best) | (v != v);
              best = choose(is_more, v, best);
              place = (is_more & (whole)k) | (~is_more & place);
            } else {
              best += v;
            }
          }
          if (is_max)
            *(memory_ivec *)(s->place + to) = place;
          else
            best *= share;
          store(s->value + to, best);
        }
}

ONCE void pool_backward(State *s, real *in_error, ptrdiff_t n) {
  const Layer *is = &s->is;
  ptrdiff_t in_row = padded(is->width * n), out_row = padded(s->out_width * n);
  int is_max = is->kind == MAX_POOL;
  real share = (real)1 / (real)(is->side * is->side);
  memset(in_error, 0, sizeof(real) * is->channels * is->height * in_row);
  for (ptrdiff_t c = 0; c < is->channels; c++)
    for (ptrdiff_t y = 0; y < s->out_height; y++)
      for (ptrdiff_t x = 0; x < s->out_width; x++)
        for (ptrdiff_t b = 0; b < n; b += LANES) {
          real *to = in_error + (c * is->height + y * is->stride) * in_row +
                     x * is->stride * n + b;
          ptrdiff_t from = (c * s->out_height + y) * out_row + x * n + b;
          vec error = (vec)((ivec)load(s->error + from) & lanes_below(n - b));
          ivec place = (ivec){0};
          if (is_max)
            place = *(memory_ivec *)(s->place + from);
          else
            error *= share;
          for (ptrdiff_t k = 0; k < is->side * is->side; k++) {
            real *at = to + k / is->side * in_row + k % is->side * n;
            vec part = error;
            if (is_max) part = (vec)((ivec)error & (place == (whole)k));
            store(at, load(at) + part);
          }
        }
}

ONCE void forward(Thread *t, ptrdiff_t n) {
  for (int i = 0; i < t->count; i++) {
    State *s = &t->states[i];
    const Layer *is = &s->is;
    const real *in = values_into(t, s);
    ptrdiff_t features = is->channels * is->height * is->width;
    ptrdiff_t count = numbers_out(s, n);
    if (is->kind == LINEAR) {
      ptrdiff_t row = padded(features), out_row = padded(is->outputs);
      dots(n, is->outputs, 1, row, in, row, 0, s->weights, 0,
           every(t, is->outputs, row), s->value, out_row);
      for (ptrdiff_t b = 0; b < n; b++)
        for (ptrdiff_t o = 0; o < is->outputs; o++)
          s->value[b * out_row + o] += s->bias[o];
    } else if (is->kind == CONVOLUTION) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(s->out_width * n);
      ptrdiff_t depth = is->channels * is->side * is->side;
      const ptrdiff_t *offsets = seen_by(t, is, n);
      Ending ending = {.kind = SET, .bias = s->bias};
      for (ptrdiff_t y = 0; y < s->out_height; y++)
        outer(is->outputs, out_row, depth, s->weights, depth, 1, in + y * row, offsets,
              s->value + y * out_row, s->out_height * out_row, &ending);
    } else if (is->kind == MAX_POOL || is->kind == MEAN_POOL) {
      pool_forward(s, in, n);
    } else if (is->kind == PAD) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(s->out_width * n);
      memset(s->value, 0, sizeof(real) * count);
      for (ptrdiff_t c = 0; c < is->channels; c++)
        for (ptrdiff_t y = 0; y < is->height; y++)
          memcpy(s->value + (c * s->out_height + y + is->side) * out_row + is->side * n,
                 in + (c * is->height + y) * row, sizeof(real) * is->width * n);
    } else if (is->kind == FLATTEN) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(features);
      for (ptrdiff_t b = 0; b < n; b++) {
        real *to = s->value + b * out_row;
        for (ptrdiff_t y = 0; y < is->channels * is->height; y++)
          for (ptrdiff_t x = 0; x < is->width; x++) *to++ = in[y * row + x * n + b];
      }
    } else if (is->kind == RELU) {
      for (ptrdiff_t j = 0; j < count; j++)
        s->value[j] = s->value[j] < 0 ? 0 : s->value[j];
    } else if (is->kind == TANH_) {
      for (ptrdiff_t j = 0; j < count; j++) s->value[j] = TANH(s->value[j]);
    } else {
      for (ptrdiff_t j = 0; j < count; j++) s->value[j] = 1 / (1 + EXP(-s->value[j]));
      ptrdiff_t width = s->out_channels * s->out_height * s->out_width;
      for (ptrdiff_t b = 0; s->is_rows && b < n; b++) /* what is padding stays 0 */
        for (ptrdiff_t j = width; j < padded(width); j++)
          s->value[b * padded(width) + j] = 0;
    }
  }
}

/* The mean loss of a batch; leaves its gradient in the last layer's errors. */
ONCE double loss_of(Thread *t, const int64_t *samples, ptrdiff_t n) {
  const Work *w = t->work;
  State *s = &t->states[t->count - 1];
  ptrdiff_t outputs = s->out_channels * s->out_height * s->out_width;
  ptrdiff_t row = padded(outputs);
  real share = 1 / (real)(n > 0 ? n : 1);
  double total = 0;
  for (ptrdiff_t b = 0; b < n; b++) {
    const real *value = s->value + b * row;
    real *error = s->error + b * row;
    if (w->loss == CROSS_ENTROPY) {
      ptrdiff_t label = ((const int64_t *)w->targets)[samples[b]];
      real top = value[0], sum = 0;
      for (ptrdiff_t o = 1; o < outputs; o++) top = value[o] > top ? value[o] : top;
      for (ptrdiff_t o = 0; o < outputs; o++) sum += error[o] = EXP(value[o] - top);
      for (ptrdiff_t o = 0; o < outputs; o++) error[o] *= share / sum;
      error[label] -= share;
      total += LOG(sum) + top - value[label];
    } else {
      const real *target = (const real *)w->targets + samples[b] * outputs;
      real square = 0;
      for (ptrdiff_t o = 0; o < outputs; o++) {
        real difference = value[o] - target[o];
        square += difference * difference;
        error[o] = 2 * difference * share / (real)outputs;
      }
      total += square / (real)outputs;
    }
    for (ptrdiff_t o = outputs; o < row; o++) error[o] = 0;
  }
  return total * share;
}

ONCE void backward(Thread *t, ptrdiff_t n) {
  for (int i = t->count - 1; i >= 0; i--) {
    State *s = &t->states[i];
    const Layer *is = &s->is;
    const real *in = values_into(t, s);
    real *in_error = s->in < 0 ? NULL : t->states[s->in].error;
    ptrdiff_t features = is->channels * is->height * is->width;
    ptrdiff_t count = numbers_out(s, n);
    if (is->kind == LINEAR) {
      ptrdiff_t row = padded(features), out_row = padded(is->outputs);
      memset(s->bias_change, 0, sizeof(real) * is->outputs);
      for (ptrdiff_t b = 0; b < n; b++)
        for (ptrdiff_t o = 0; o < is->outputs; o++)
          s->bias_change[o] += s->error[b * out_row + o];
      Ending ending = {.kind = SET};
      if (in_error)
        outer(n, row, is->outputs, s->error, out_row, 1, s->weights,
              every(t, is->outputs, row), in_error, row, &ending);
    } else if (is->kind == CONVOLUTION) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(s->out_width * n);
      ptrdiff_t depth = is->channels * is->side * is->side;
      ptrdiff_t plane = s->out_height * out_row;
      for (ptrdiff_t o = 0; o < is->outputs; o++) {
        real sum = 0;
        for (ptrdiff_t y = 0; y < s->out_height; y++) {
          real *at = s->error + o * plane + y * out_row;
          vec part = (vec){0};
          for (ptrdiff_t x = s->out_width * n; x < out_row; x++) at[x] = 0;
          for (ptrdiff_t x = 0; x < out_row; x += LANES) part += load(at + x);
          for (int lane = 0; lane < LANES; lane++) sum += part[lane];
        }
        s->bias_change[o] = sum;
      }
      dots(is->outputs, depth, s->out_height, out_row, s->error, plane, out_row, in,
           row, seen_by(t, is, n), s->weights_change, depth);
      if (in_error) {
        Ending ending = {.kind = ADD};
        const ptrdiff_t *offsets = every(t, is->outputs, plane);
        ptrdiff_t area = is->side * is->side;
        memset(in_error, 0, sizeof(real) * is->channels * is->height * row);
        for (ptrdiff_t y = 0; y < s->out_height; y++)
          for (ptrdiff_t k = 0; k < area; k++)
            outer(is->channels, out_row, is->outputs, s->weights + k, area, depth,
                  s->error + y * out_row, offsets,
                  in_error + (y + k / is->side) * row + k % is->side * n,
                  is->height * row, &ending);
      }
    } else if (is->kind == MAX_POOL || is->kind == MEAN_POOL) {
      if (in_error) pool_backward(s, in_error, n);
    } else if (is->kind == PAD) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(s->out_width * n);
      for (ptrdiff_t c = 0; in_error && c < is->channels; c++)
        for (ptrdiff_t y = 0; y < is->height; y++)
          memcpy(in_error + (c * is->height + y) * row,
                 s->error + (c * s->out_height + y + is->side) * out_row + is->side * n,
                 sizeof(real) * is->width * n);
    } else if (is->kind == FLATTEN) {
      ptrdiff_t row = padded(is->width * n), out_row = padded(features);
      for (ptrdiff_t b = 0; in_error && b < n; b++) {
        const real *from = s->error + b * out_row;
        for (ptrdiff_t y = 0; y < is->channels * is->height; y++)
          for (ptrdiff_t x = 0; x < is->width; x++)
            in_error[y * row + x * n + b] = *from++;
      }
    } else if (!s->error) {
      continue;
    } else if (is->kind == RELU) {
      for (ptrdiff_t j = 0; j < count; j++)
        s->error[j] = s->value[j] <= 0 ? 0 : s->error[j];
    } else if (is->kind == TANH_) {
      for (ptrdiff_t j = 0; j < count; j++)
        s->error[j] *= 1 - s->value[j] * s->value[j];
    } else {
      for (ptrdiff_t j = 0; j < count; j++)
        s->error[j] *= s->value[j] * (1 - s->value[j]);
    }
  }
}

static real square_of(const real *at, ptrdiff_t count) {
  real total = 0;
  for (ptrdiff_t i = 0; i < count; i++) total += at[i] * at[i];
  return total;
}

/* The square of a linear layer's gradient, sum over b of error[b] value[b]^T: a bound
 * of it, or itself. */
static real square_of_linear(Thread *t, State *s, ptrdiff_t n, int is_bound) {
  ptrdiff_t row = padded(s->is.channels * s->is.height * s->is.width);
  ptrdiff_t out_row = padded(s->is.outputs), across = padded(n);
  const real *in = values_into(t, s);
  real *left = t->pairs, *right = t->pairs + t->work->batch * across, total = 0;
  if (is_bound) {
    for (ptrdiff_t b = 0; b < n; b++) {
      dots(1, 1, 1, row, in + b * row, row, 0, in + b * row, 0, every(t, 1, 0), left,
           1);
      dots(1, 1, 1, out_row, s->error + b * out_row, row, 0, s->error + b * out_row, 0,
           every(t, 1, 0), right, 1);
      total += SQRT(left[0] * right[0]);
    }
    return total * total;
  }
  dots(n, n, 1, row, in, row, 0, in, 0, every(t, n, row), left, across);
  dots(n, n, 1, out_row, s->error, out_row, 0, s->error, 0, every(t, n, out_row), right,
       across);
  for (ptrdiff_t a = 0; a < n; a++)
    for (ptrdiff_t b = 0; b < n; b++)
      total += left[a * across + b] * right[a * across + b];
  return total > 0 || total != total ? total : 0;
}

/* What brings the gradient down to the norm that it may have. */
ONCE real clip_factor(Thread *t, ptrdiff_t n) {
  real clip = (real)t->work->clip;
  if (!(clip > 0)) return 1;
  real factor = 1;
  /* Mostly a bound is enough, which costs a fraction of the norm. */
  for (int is_bound = 1; is_bound >= 0; is_bound--) {
    real total = 0;
    for (int i = 0; i < t->count; i++) {
      State *s = &t->states[i];
      if (!s->weights_count) continue;
      if (s->is.bias >= 0) total += square_of(s->bias_change, s->is.outputs);
      if (s->is.kind == LINEAR)
        total += square_of_linear(t, s, n, is_bound);
      else
        total += square_of(s->weights_change, s->weights_count);
    }
    factor = clip / SQRT(total);
    if (factor >= 1) return 1;
  }
  return factor;
}

ONCE void update_numbers(const Ending *ending, real *at, const real *change,
                           real *velocity, ptrdiff_t count) {
  for (ptrdiff_t i = 0; i < count; i++) {
    real gradient = change[i] * ending->factor + at[i] * ending->decay;
    if (velocity) velocity[i] = gradient += velocity[i] * ending->momentum;
    at[i] -= gradient * ending->rate;
  }
}

ONCE void update(Thread *t, ptrdiff_t n) {
  const Work *w = t->work;
  Ending ending = {.kind = UPDATE,
                   .rate = (real)w->rate,
                   .factor = clip_factor(t, n),
                   .decay = (real)w->decay,
                   .momentum = (real)w->momentum};
  for (int i = 0; i < t->count; i++) {
    State *s = &t->states[i];
    if (!s->weights_count) continue;
    if (s->is.bias >= 0)
      update_numbers(&ending, s->bias, s->bias_change, s->bias_velocity, s->is.outputs);
    if (s->is.kind == LINEAR) {
      ptrdiff_t row = padded(s->is.channels * s->is.height * s->is.width);
      ending.velocity = s->weights_velocity;
      outer(s->is.outputs, row, n, s->error, 1, padded(s->is.outputs),
            values_into(t, s), every(t, n, row), s->weights, row, &ending);
    } else {
      update_numbers(&ending, s->weights, s->weights_change, s->weights_velocity,
                     s->weights_count);
    }
  }
}

#define CONVERT(TYPE)                                                                  \
  for (ptrdiff_t f = 0; f < features; f++) to[f] = (real)((const TYPE *)from)[f];

/* One sample as the network takes it. */
ONCE void convert(const Work *w, ptrdiff_t client, ptrdiff_t sample,
                  ptrdiff_t features, real *to) {
  const char *from = (const char *)w->inputs + sample * features * INPUT_BYTES(w);
  if (w->input_kind == BYTES) {
    CONVERT(uint8_t)
  } else if (w->input_kind == SINGLE) {
    CONVERT(float)
  } else {
    CONVERT(double)
  }
  const real *shift = w->shift + client * w->level_client;
  const real *scale = w->scale + client * w->level_client;
  if (w->level_feature) {
    for (ptrdiff_t f = 0; f < features; f++) to[f] = (to[f] - shift[f]) / scale[f];
  } else {
    real low = shift[0], inverse = 1 / scale[0];
    for (ptrdiff_t f = 0; f < features; f++) to[f] = (to[f] - low) * inverse;
  }
}

/* The samples of a step. */
static void gather(Thread *t, ptrdiff_t client, const int64_t *samples, ptrdiff_t n) {
  const Work *w = t->work;
  const Layer *is = w->layers;
  ptrdiff_t features = is->channels * is->height * is->width;
  for (ptrdiff_t b = 0; b < n; b++) {
    real *row = t->input_is_rows ? t->input + b * padded(features) : t->sample;
    convert(w, client, samples[b], features, row);
    if (t->input_is_rows) continue;
    for (ptrdiff_t y = 0; y < is->channels * is->height; y++) {
      real *to = t->input + y * padded(is->width * n) + b;
      for (ptrdiff_t x = 0; x < is->width; x++) to[x * n] = *row++;
    }
  }
}

/* Ask for the samples of the next step while this one is computed. */
static void fetch(const Work *w, const int64_t *samples, ptrdiff_t n) {
  ptrdiff_t features = w->layers->channels * w->layers->height * w->layers->width;
  ptrdiff_t bytes = features * INPUT_BYTES(w);
  for (ptrdiff_t b = 0; b < n; b++)
    for (ptrdiff_t at = 0; at < bytes; at += 64)
      __builtin_prefetch((const char *)w->inputs + samples[b] * bytes + at);
}

enum { TO_THREAD, FROM_THREAD };

static void move_rows(real *held, real *theta, ptrdiff_t rows, ptrdiff_t width,
                      ptrdiff_t step, int direction) {
  for (ptrdiff_t r = 0; r < rows; r++)
    if (direction == TO_THREAD)
      memcpy(held + r * step, theta + r * width, sizeof(real) * width);
    else
      memcpy(theta + r * width, held + r * step, sizeof(real) * width);
}

/* Parameters from theta to where they are trained, or back. */
ONCE void move(Thread *t, real *theta, real *velocity, int direction) {
  for (int i = 0; i < t->count; i++) {
    State *s = &t->states[i];
    if (!s->weights_count) continue;
    const Layer *is = &s->is;
    int is_linear = is->kind == LINEAR;
    ptrdiff_t width = is_linear ? is->channels * is->height * is->width
                                : is->channels * is->side * is->side;
    ptrdiff_t step = is_linear ? padded(width) : width;
    move_rows(s->weights, theta + is->weights, is->outputs, width, step, direction);
    if (is->bias >= 0)
      move_rows(s->bias, theta + is->bias, 1, is->outputs, 0, direction);
    if (!velocity) continue;
    move_rows(s->weights_velocity, velocity + is->weights, is->outputs, width, step,
              direction);
    if (is->bias >= 0)
      move_rows(s->bias_velocity, velocity + is->bias, 1, is->outputs, 0, direction);
  }
}

static void descend_one(Thread *t, ptrdiff_t client) {
  Work *w = t->work;
  const int64_t *samples = w->samples + client * w->samples_client;
  const int64_t *sizes = w->sizes + client * w->sizes_client;
  ptrdiff_t steps = w->steps[client], start = client * w->size;
  real *theta = w->new_theta + start;
  real *velocity = w->velocity ? w->new_velocity + start : NULL;
  memcpy(theta, w->theta + client * w->theta_client, sizeof(real) * w->size);
  if (velocity)
    memcpy(velocity, w->velocity + client * w->velocity_client,
           sizeof(real) * w->size);
  if (steps == 0) return;
  /* Padding is 0, also after a client whose numbers went to infinity. */
  memset(t->memory, 0, t->at - t->memory);
  move(t, theta, velocity, TO_THREAD);
  double losses = 0, seen = 0;
  for (ptrdiff_t step = 0; step < steps; step++) {
    const int64_t *own = samples + step * w->samples_step;
    ptrdiff_t n = sizes[step * w->sizes_step];
    gather(t, client, own, n);
    if (step + 1 < steps)
      fetch(w, own + w->samples_step, sizes[(step + 1) * w->sizes_step]);
    forward(t, n);
    losses += loss_of(t, own, n);
    seen += (double)n;
    backward(t, n);
    update(t, n);
  }
  move(t, theta, velocity, FROM_THREAD);
  w->losses[client] += (real)losses;
  w->seen[client] += (real)seen;
}

/* What a model says of a run of samples. */
static void say_one(Thread *t, ptrdiff_t run) {
  Work *w = t->work;
  const int64_t *samples = w->samples + w->starts[run];
  const State *last = &t->states[t->count - 1];
  ptrdiff_t outputs = last->out_channels * last->out_height * last->out_width;
  real *to = w->outputs + w->starts[run] * outputs;
  memset(t->memory, 0, t->at - t->memory);
  move(t, (real *)w->theta + w->models[run] * w->theta_client, NULL, TO_THREAD);
  for (ptrdiff_t n, left = w->sizes[run]; left > 0; left -= n, samples += n) {
    n = left < w->batch ? left : w->batch;
    gather(t, 0, samples, n);
    fetch(w, samples + n, left - n < w->batch ? left - n : w->batch);
    forward(t, n);
    move_rows(last->value, to, n, outputs, padded(outputs), FROM_THREAD);
    to += n * outputs;
  }
}

static void *run_thread(void *argument) {
  Thread *t = argument;
  for (;;) {
    int64_t place = __atomic_fetch_add(&t->work->next, 1, __ATOMIC_RELAXED);
    if (place >= t->work->clients) return NULL;
    (t->work->outputs ? say_one : descend_one)(t, t->work->order[place]);
  }
}

static int make_thread(Thread *t, Work *w) {
  memset(t, 0, sizeof *t);
  t->work = w;
  t->count = (int)w->count;
  t->states = calloc(w->count, sizeof(State));
  if (!t->states) return 0;
  lay_out(t);
  size_t bytes = (size_t)(t->at - (char *)NULL);
  if (posix_memalign((void **)&t->memory, 64, bytes)) return 0;
  t->at = t->memory;
  lay_out(t);
  return 1;
}

/* All steps of all clients, or what their models say, on so many threads; 0 if there
 * was not enough memory, and then nothing was done. */
int descend(Work *w, int64_t threads) {
  if (threads > w->clients) threads = w->clients;
  if (threads < 1) return 1;
  Thread *made = calloc(threads, sizeof(Thread));
  pthread_t *ids = calloc(threads, sizeof(pthread_t));
  int is_enough = made && ids;
  int64_t count = 0;
  while (is_enough && count < threads) {
    is_enough = make_thread(&made[count], w);
    count++;
  }
  if (is_enough) {
    int64_t started = 1;
    w->next = 0;
    while (started < threads &&
           !pthread_create(&ids[started], NULL, run_thread, &made[started]))
      started++;
    run_thread(&made[0]);
    for (int64_t i = 1; i < started; i++) pthread_join(ids[i], NULL);
  }
  for (int64_t i = 0; made && i < count; i++) {
    free(made[i].memory);
    free(made[i].states);
  }
  free(made);
  free(ids);
  return is_enough;
}

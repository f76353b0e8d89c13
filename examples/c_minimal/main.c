/* Two processes train a net of two layers, y = B tanh(A x), each on a half of every batch; Muon's
 * state lies in the folder of the first argument. Run it again, or kill it and run it again: it goes
 * on at its last snapshot. */
#include <ebb.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IN = 16, HIDDEN = 32, OUT = 8, BATCH = 64, WORLD = 2, LINE = 512 };
static float A[HIDDEN][IN], B[OUT][HIDDEN], dA[HIDDEN][IN], dB[OUT][HIDDEN];

static void check(ebb_status status, const char* call) {
  if (status == EBB_DONE) return;
  const ebb_error* const error = ebb_last_error();
  fprintf(stderr, "%s: %s (%s)\n", call, error->message, error->hint);
  exit(1);
}
#define DO(call) check(call, #call)

/* The same numbers for the same place: data that a run which goes on finds again. */
static float noise(uint64_t at) {
  at = (at + 1) * 0x9e3779b97f4a7c15u;
  at = (at ^ (at >> 31)) * 0xbf58476d1ce4e5b9u;
  return (float)((double)(at >> 40) / (1 << 23) - 1);
}

/* This rank's part of the gradient of the mean loss of a batch; answers its part of the loss. */
static float backward(uint64_t step, uint32_t rank) {
  float loss = 0;
  memset(dA, 0, sizeof dA);
  memset(dB, 0, sizeof dB);
  for (uint32_t s = rank; s < BATCH; s += WORLD) {
    float x[IN], h[HIDDEN], dh[HIDDEN] = {0};
    for (int i = 0; i < IN; ++i) x[i] = noise((step * BATCH + s) * IN + (uint64_t)i);
    for (int j = 0; j < HIDDEN; ++j) {
      float sum = 0;
      for (int i = 0; i < IN; ++i) sum += A[j][i] * x[i];
      h[j] = tanhf(sum);
    }
    for (int k = 0; k < OUT; ++k) {
      float error = -tanhf(x[k] - x[k + OUT]); /* what it is to learn */
      for (int j = 0; j < HIDDEN; ++j) error += B[k][j] * h[j];
      loss += error * error / BATCH;
      for (int j = 0; j < HIDDEN; ++j) {
        dB[k][j] += 2 * error * h[j] / BATCH;
        dh[j] += 2 * error * B[k][j] / BATCH;
      }
    }
    for (int j = 0; j < HIDDEN; ++j)
      for (int i = 0; i < IN; ++i) dA[j][i] += dh[j] * (1 - h[j] * h[j]) * x[i];
  }
  return loss;
}

static void train(ebb_ranks* ranks, uint32_t rank, const char* directory) {
  const uint64_t shape_a[] = {HIDDEN, IN}, shape_b[] = {OUT, HIDDEN};
  const ebb_setting settings[] = {{"lr", "0.02"}, {"weight_decay", "0"}};
  const ebb_group muon = {sizeof muon, "muon", NULL, settings, 2};
  const ebb_param params[] = {{.size = sizeof(ebb_param), .name = "a", .shape = shape_a, .ndim = 2},
                              {.size = sizeof(ebb_param), .name = "b", .shape = shape_b, .ndim = 2}};
  const ebb_layout whole = {.size = sizeof whole, .policy = EBB_REPLICATED, .shard_world = WORLD};
  const ebb_model model = {.size = sizeof model, .params = params, .groups = &muon, .param_count = 2,
                           .group_count = 1, .gradients = &whole, .weights = &whole,
                           .hand_in = EBB_PARTIAL_SUMS, /* the engine adds the ranks' parts */
                           .budget_bytes = 1 << 20, .tile_bytes = 4096};
  const ebb_buffer weights[] = {{A, HIDDEN * IN, EBB_F32, -1, NULL}, {B, OUT * HIDDEN, EBB_F32, -1, NULL}};
  const ebb_buffer gradients[] = {{dA, HIDDEN * IN, EBB_F32, -1, NULL}, {dB, OUT * HIDDEN, EBB_F32, -1, NULL}};
  const ebb_start start = {.size = sizeof start, .directory = directory, .weights = weights};
  for (int i = 0; i < HIDDEN * IN; ++i) (&A[0][0])[i] = noise((uint64_t)i) / 4;
  for (int i = 0; i < OUT * HIDDEN; ++i) (&B[0][0])[i] = noise((uint64_t)i + HIDDEN * IN) / 6;
  ebb_engine* engine;
  uint64_t step;
  DO(ebb_engine_open(&model, ranks, &start, &engine));
  DO(ebb_engine_committed(engine, NULL, &step));
  for (const uint64_t last = step + 50; step < last;) {
    const uint32_t both[] = {0, 1};
    const float loss = backward(step, rank);
    ebb_step_result result = {.size = sizeof result};
    DO(ebb_engine_gradients(engine, both, gradients, NULL, 2));
    DO(ebb_engine_step(engine, NULL, &result));
    step = result.step;
    if (rank == 0 && step % 10 == 0) printf("step %d: loss %.4f\n", (int)step, (double)loss * WORLD);
  }
  DO(ebb_engine_snapshot(engine, NULL));
  DO(ebb_engine_wait_snapshot(engine, NULL));
  DO(ebb_engine_close(engine));
}

int main(int argc, char** argv) {
  int sockets[WORLD][2]; /* over which the processes tell each other where they listen */
  for (int rank = 0; rank < WORLD; ++rank) check(pipe(sockets[rank]) ? EBB_IO : EBB_DONE, "pipe");
  const pid_t child = fork();
  const uint32_t rank = child == 0;
  char other[LINE] = "";
  const char* addresses[WORLD];
  char* mine;
  ebb_listener* listener;
  ebb_ranks* ranks;
  DO(ebb_listener_open(NULL, &listener, &mine));
  check(write(sockets[rank][1], mine, strlen(mine) + 1) < 0 ? EBB_IO : EBB_DONE, "write");
  check(read(sockets[1 - rank][0], other, LINE - 1) < 0 ? EBB_IO : EBB_DONE, "read");
  addresses[rank] = mine;
  addresses[1 - rank] = other;
  DO(ebb_ranks_connect(listener, rank, WORLD, addresses, 60000, &ranks));
  train(ranks, rank, argc > 1 ? argv[1] : "swap");
  DO(ebb_ranks_close(ranks));
  ebb_free(mine);
  return child == 0 || wait(NULL) == child ? 0 : 1;
}

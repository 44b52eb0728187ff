/* Threads and cores of this process, for all models that share them.
 *
 *   pool     the cores: who has how many of them, who waits
 *   team     the cores of one call: the calling thread and some workers
 *   worker   a thread; it spins for a moment where it has nothing to do, and then sleeps
 *
 * A call that is alone has as many cores as it wants. Several calls share the cores out equally. A call waits only if no
 * core is free, or if another one has waited for more than `PATIENCE` seconds. This is what `CoreShares` does in Python.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "program.h"

#define PATIENCE 2e-3
#ifndef PAUSES
#define PAUSES 200 /* Some 10 us. */
#endif
#ifndef YIELDS_IN_CALL
#define YIELDS_IN_CALL 1000 /* Some 500 us, as while a kernel runs that has one task. */
#define YIELDS_AFTER 100    /* Some 50 us, as between two calls. */
#endif
#define STACK_BYTES (8 << 20)
#define LINE 64 /* Bytes of a cache line: what several threads write does not share one. */

/* A word on which a thread sleeps until it changes. */
typedef struct {
  _Atomic uint32_t value;
  _Atomic uint32_t sleeping;
#ifndef __linux__
  pthread_mutex_t lock;
  pthread_cond_t changed;
#endif
} word;

typedef struct worker {
  _Alignas(LINE) word ticket; /* Odd: there is work, which whoever makes it even does. */
  _Atomic(struct sd_team *) team;
  int lane;
  sd_stack stack;
  struct pool *pool;
  struct worker *next; /* Of those that no team has. */
  struct worker *all;
  pthread_t thread;
} worker;

struct sd_team {
  _Alignas(LINE) word pending; /* Workers that are not done. */
  sd_work work;
  void *job;
  worker **workers;
  int count; /* Of the workers. */
  int lanes;
  sd_stack stack;
  struct sd_team *next; /* Of those that no call has. */
};

typedef struct waiter {
  struct waiter *next;
  double since;
  pthread_cond_t freed; /* Of its own: only the first one is woken. */
} waiter;

typedef struct pool {
  stormdrop_pool interface;
  _Atomic int users;
  _Atomic uint32_t ending;
  const _Atomic uint32_t *here; /* 0 in a process that was forked since: it has none of the threads. */
  pthread_mutex_t lock;
  int free;  /* Cores. */
  int calls; /* In progress, or waiting. */
  int made;  /* Workers. */
  waiter *first;
  worker *idle, *workers;
  sd_team *teams;
} pool;

static double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Words. */

static void init_word(word *each) {
  atomic_init(&each->value, 0);
  atomic_init(&each->sleeping, 0);
#ifndef __linux__
  pthread_mutex_init(&each->lock, NULL);
  pthread_cond_init(&each->changed, NULL);
#endif
}

static void destroy_word(word *each) {
#ifndef __linux__
  pthread_mutex_destroy(&each->lock);
  pthread_cond_destroy(&each->changed);
#else
  (void)each;
#endif
}

/* Sleeps while the word has a value. Whoever changes it calls `wake`. */
static void sleep_while(word *each, uint32_t value) {
  atomic_store(&each->sleeping, 1);
#ifdef __linux__
  while (atomic_load(&each->value) == value)
    syscall(SYS_futex, (uint32_t *)&each->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
  pthread_mutex_lock(&each->lock);
  while (atomic_load(&each->value) == value) pthread_cond_wait(&each->changed, &each->lock);
  pthread_mutex_unlock(&each->lock);
#endif
  atomic_store(&each->sleeping, 0);
}

/* What a thread does that has looked for work so many times: at first it is fast, then it lets others run. */
static void linger(int looks) {
  if (looks < PAUSES) {
    sd_pause();
  } else {
    sched_yield();
  }
}

static void wake(word *each) {
  if (!atomic_load(&each->sleeping)) return;
#ifdef __linux__
  syscall(SYS_futex, (uint32_t *)&each->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
#else
  pthread_mutex_lock(&each->lock);
  pthread_cond_broadcast(&each->changed);
  pthread_mutex_unlock(&each->lock);
#endif
}

/* Workers. */

static bool claim(worker *each, uint32_t ticket) {
  return atomic_compare_exchange_strong(&each->ticket.value, &ticket, ticket + 1);
}

static void *work_on(void *argument) {
  worker *me = argument;
  for (;;) {
    uint32_t ticket;
    for (int looks = 0; (ticket = atomic_load_explicit(&me->ticket.value, memory_order_acquire)) % 2 == 0; looks++) {
      const bool in_call = atomic_load_explicit(&me->team, memory_order_relaxed) != NULL;
      if (looks > PAUSES + (in_call ? YIELDS_IN_CALL : YIELDS_AFTER)) {
        sleep_while(&me->ticket, ticket);
        looks = 0;
      } else {
        linger(looks);
      }
    }
    if (!claim(me, ticket)) continue; /* The caller did it meanwhile. */
    if (atomic_load(&me->pool->ending)) return NULL;
    sd_team *team = atomic_load_explicit(&me->team, memory_order_relaxed);
    team->work(team->job, me->lane, team->lanes, &me->stack);
    if (atomic_fetch_sub(&team->pending.value, 1) == 1) wake(&team->pending);
  }
}

static worker *make_worker(pool *here) {
  worker *made = NULL;
  if (posix_memalign((void **)&made, LINE, sizeof *made)) return NULL;
  memset(made, 0, sizeof *made);
  init_word(&made->ticket);
  made->pool = here;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigset_t all, before; /* Signals are for the threads of the application. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&made->thread, &attributes, work_on, made);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (error) {
    free(made);
    return NULL;
  }
  made->all = here->workers;
  here->workers = made;
  here->made++;
  return made;
}

static void launch(sd_team *team, sd_work work, void *job) {
  team->work = work;
  team->job = job;
  atomic_store_explicit(&team->pending.value, (uint32_t)team->count, memory_order_relaxed);
  for (int i = 0; i < team->count; i++) {
    worker *each = team->workers[i];
    atomic_fetch_add(&each->ticket.value, 1);
    wake(&each->ticket);
  }
  work(job, 0, team->lanes, &team->stack);
  for (int i = 0; i < team->count; i++) { /* What a worker has not begun, the caller does. */
    worker *each = team->workers[i];
    uint32_t ticket = atomic_load_explicit(&each->ticket.value, memory_order_relaxed);
    if (ticket % 2 && claim(each, ticket)) {
      work(job, each->lane, team->lanes, &team->stack);
      atomic_fetch_sub(&team->pending.value, 1);
    }
  }
  uint32_t pending;
  for (int looks = 0; (pending = atomic_load_explicit(&team->pending.value, memory_order_acquire)) != 0; looks++) {
    if (looks > PAUSES + YIELDS_IN_CALL) {
      sleep_while(&team->pending, pending);
      looks = 0;
    } else {
      linger(looks);
    }
  }
}

/* Cores. */

static int free_for(const pool *here, const waiter *me) {
  if (here->free && here->first && here->first != me && seconds_now() - here->first->since > PATIENCE) return 0;
  return here->free;
}

static int wait_for_cores(pool *here) {
  waiter me = {.since = seconds_now()}, **last = &here->first;
  pthread_cond_init(&me.freed, NULL);
  while (*last) last = &(*last)->next;
  *last = &me;
  int free;
  while (!(free = free_for(here, &me))) pthread_cond_wait(&me.freed, &here->lock);
  for (last = &here->first; *last != &me; last = &(*last)->next) {
  }
  *last = me.next;
  pthread_cond_destroy(&me.freed);
  return free;
}

static int take_cores(pool *here, int most) {
  here->calls++;
  int free = free_for(here, NULL);
  if (!free) free = wait_for_cores(here);
  int share = here->interface.cores / here->calls, wanted = share > 1 ? share : 1;
  if (wanted > most) wanted = most;
  if (wanted > free) wanted = free;
  here->free -= wanted;
  if (here->first && here->free) pthread_cond_signal(&here->first->freed); /* Another one was woken for these. */
  return wanted;
}

static sd_team *make_team(const pool *here) {
  sd_team *made = NULL;
  if (posix_memalign((void **)&made, LINE, sizeof *made)) return NULL;
  memset(made, 0, sizeof *made);
  made->workers = calloc((size_t)here->interface.cores, sizeof *made->workers);
  if (!made->workers) {
    free(made);
    return NULL;
  }
  init_word(&made->pending);
  return made;
}

static sd_team *begin(stormdrop_pool *interface, int most, const char **why) {
  pool *here = (pool *)interface;
  if (!atomic_load_explicit(here->here, memory_order_relaxed)) {
    *why = "was opened before this process was forked: open it after the fork";
    return NULL;
  }
  pthread_mutex_lock(&here->lock);
  int cores = take_cores(here, most);
  sd_team *team = here->teams;
  if (team) {
    here->teams = team->next;
  } else if (!(team = make_team(here))) {
    here->free += cores;
    here->calls--;
    pthread_mutex_unlock(&here->lock);
    *why = "no memory";
    return NULL;
  }
  for (team->count = 0; team->count < cores - 1; team->count++) {
    worker *each = here->idle;
    if (each) {
      here->idle = each->next;
    } else if (!(each = make_worker(here))) {
      break; /* The call has fewer threads. */
    }
    each->lane = team->count + 1;
    atomic_store_explicit(&each->team, team, memory_order_relaxed);
    team->workers[team->count] = each;
  }
  here->free += cores - 1 - team->count;
  team->lanes = team->count + 1;
  pthread_mutex_unlock(&here->lock);
  return team;
}

static void end(stormdrop_pool *interface, sd_team *team) {
  pool *here = (pool *)interface;
  pthread_mutex_lock(&here->lock);
  for (int i = team->count; i-- > 0;) { /* The next call gets them in the same order. */
    worker *each = team->workers[i];
    atomic_store_explicit(&each->team, NULL, memory_order_relaxed);
    each->next = here->idle;
    here->idle = each;
  }
  here->free += team->lanes;
  here->calls--;
  team->next = here->teams;
  here->teams = team;
  if (here->first) pthread_cond_signal(&here->first->freed);
  pthread_mutex_unlock(&here->lock);
}

static int lanes(const sd_team *team) { return team->lanes; }
static sd_stack *stack(sd_team *team) { return &team->stack; }

/* Pools. */

static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
static pool *the_pool;

static void retain(stormdrop_pool *interface) { atomic_fetch_add(&((pool *)interface)->users, 1); }

static void free_pool(pool *here) {
  const bool alive = atomic_load(here->here);
  atomic_store(&here->ending, 1);
  for (worker *each = here->workers, *next; each; each = next) {
    next = each->all;
    if (alive) {
      atomic_fetch_add(&each->ticket.value, 1);
      wake(&each->ticket);
      pthread_join(each->thread, NULL);
    }
    sd_free_stack(&each->stack);
    destroy_word(&each->ticket);
    free(each);
  }
  for (sd_team *each = here->teams, *next; each; each = next) {
    next = each->next;
    sd_free_stack(&each->stack);
    destroy_word(&each->pending);
    free(each->workers);
    free(each);
  }
  pthread_mutex_destroy(&here->lock);
  munmap((void *)here->here, sizeof *here->here);
  free(here);
}

static void release(stormdrop_pool *interface) {
  pool *here = (pool *)interface;
  pthread_mutex_lock(&the_lock);
  const bool last = atomic_fetch_sub(&here->users, 1) == 1;
  if (last && the_pool == here) the_pool = NULL;
  pthread_mutex_unlock(&the_lock);
  if (last) free_pool(here);
}

static pool *make_pool(void) {
  pool *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  _Atomic uint32_t *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if ((void *)page == MAP_FAILED) {
    free(made);
    return NULL;
  }
#ifdef MADV_WIPEONFORK
  madvise((void *)page, sizeof *page, MADV_WIPEONFORK);
#endif
  atomic_store(page, 1);
  made->here = page;
  made->interface = (stormdrop_pool){
      .interface = STORMDROP_INTERFACE,
      .cores = sd_usable_cores(),
      .retain = retain,
      .release = release,
      .begin = begin,
      .end = end,
      .launch = launch,
      .lanes = lanes,
      .stack = stack,
  };
  made->free = made->interface.cores;
  pthread_mutex_init(&made->lock, NULL);
  return made;
}

stormdrop_pool *sd_pool(void) {
  pthread_mutex_lock(&the_lock);
  if (the_pool && !atomic_load(the_pool->here)) the_pool = NULL; /* That of the process which was forked. */
  if (!the_pool) the_pool = make_pool();
  pool *found = the_pool;
  if (found) atomic_fetch_add(&found->users, 1);
  pthread_mutex_unlock(&the_lock);
  return found ? &found->interface : NULL;
}

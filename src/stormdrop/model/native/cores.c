/* How many cores this process may keep busy: its affinity, or the CPU quota of its control groups if that is less. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

static int allowed_cores(void) {
#ifdef __linux__
  for (size_t most = 1024; most <= 1 << 18; most *= 4) {
    cpu_set_t *set = CPU_ALLOC(most);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(most);
    const int cores = sched_getaffinity(0, bytes, set) ? 0 : CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (cores) return cores;
  }
#endif
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : (int)cores;
}

/* The first two words of a file, of which the second may be missing. Returns how many there are. */
static int words(const char *folder, const char *name, char first[32], char second[32]) {
  char path[4600];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  const int found = fscanf(file, "%31s %31s", first, second);
  fclose(file);
  return found < 0 ? 0 : found;
}

static double quota_of(const char *group, int version) {
  char first[32], second[32];
  if (version == 2) {
    if (words(group, "cpu.max", first, second) < 2 || !strcmp(first, "max")) return 0;
  } else {
    char unused[32];
    if (!words(group, "cpu.cfs_quota_us", first, unused) || atof(first) <= 0) return 0;
    if (!words(group, "cpu.cfs_period_us", second, unused)) return 0;
  }
  return atof(second) > 0 ? atof(first) / atof(second) : 0;
}

/* The smallest quota of a group and those above it; 0 if none has one. */
static double smallest_quota(const char *mount, const char *path, int version) {
  char group[4500];
  double least = 0;
  if (strstr(path, "..") || snprintf(group, sizeof group, "%s%s", mount, path) >= (int)sizeof group) path = "";
  if (!*path) snprintf(group, sizeof group, "%s", mount);
  for (;;) {
    const double quota = quota_of(group, version);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    char *last = strrchr(group, '/');
    if (strlen(group) <= strlen(mount) || !last) return least;
    *last = 0;
  }
}

static double quota_of_line(char *line) {
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path) return 0;
  controllers++;
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  if (!*controllers) return smallest_quota("/sys/fs/cgroup", path, 2);
  char all[256];
  snprintf(all, sizeof all, "%s", controllers);
  char *rest = NULL;
  for (char *each = strtok_r(all, ",", &rest); each; each = strtok_r(NULL, ",", &rest)) {
    if (strcmp(each, "cpu")) continue;
    char mount[300];
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controllers);
    const double quota = smallest_quota(mount, path, 1);
    return quota > 0 ? quota : smallest_quota("/sys/fs/cgroup/cpu", path, 1);
  }
  return 0;
}

int sd_usable_cores(void) {
  const int cores = allowed_cores();
  double least = 0;
  FILE *file = fopen("/proc/self/cgroup", "re");
  char line[4400];
  while (file && fgets(line, sizeof line, file)) {
    const double quota = quota_of_line(line);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  if (file) fclose(file);
  if (least == 0 || least >= cores) return cores;
  return least < 1 ? 1 : (int)least; /* The thread of half a core would be throttled, and all others wait for it. */
}

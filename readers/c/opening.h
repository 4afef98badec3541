/* How the programs read files: those that they are told, and the shards beside them. */
#ifndef QFB_OPENING_H
#define QFB_OPENING_H

#include "failure.h"
#include <stdlib.h>

/* A .qfb file with all that belongs to it. */
typedef struct {
    qfb_file file;
    qfb_shard *shards;
} opened_t;

/* All bytes of a file, in its own memory; NULL if it cannot be read. */
static inline void *contents(const char *path, uint64_t *size)
{
    FILE *file;
    uint8_t *bytes = NULL, *grown;
    uint64_t room = 0, got = 1;
#ifdef QFB_POSIX
    struct stat found;
    if (!stat(path, &found) && !S_ISREG(found.st_mode)) /* a FIFO is not waited for, a device may have no end */
        return NULL;
#endif
    file = fopen(path, "rb");
    *size = 0;
    while (file && got) {
        if (*size == room) {
            room = room ? 2 * room : 1 << 16;
            if (room > SIZE_MAX || !(grown = (uint8_t *)realloc(bytes, (size_t)room)))
                break;
            bytes = grown;
        }
        got = fread(bytes + *size, 1, (size_t)(room - *size), file);
        *size += got;
    }
    if (!file || got || ferror(file)) {
        free(bytes);
        bytes = NULL;
    }
    if (file)
        fclose(file);
    return bytes;
}

#ifndef QFB_POSIX
static const void *qfb_map(const char *path, uint64_t *size) { return contents(path, size); }

static void qfb_unmap(const void *bytes, uint64_t size)
{
    (void)size;
    free((void *)(uintptr_t)bytes);
}
#endif

/* Map the shards of a file that are beside it; those that cannot be had stay without bytes. */
static void open_shards(opened_t *opened, const char *path)
{
    uint32_t i, count = qfb_shard_count(&opened->file);
    if (!(opened->shards = calloc(count, sizeof *opened->shards)))
        return;
#ifdef QFB_POSIX
    char *folder = realpath(path, NULL), *end = folder ? strrchr(folder, '/') : NULL;
    if (end)
        end[end == folder] = 0;
    for (i = 0; end && i < count; i++)
        opened->shards[i].bytes = qfb_map_shard(&opened->file, i, folder, &opened->shards[i].size);
    free(folder);
#else
    (void)path, (void)i; /* the C library alone cannot tell a link */
#endif
    qfb_open_shards(&opened->file, opened->shards, QFB_CHECK_DATA);
}

/* Open a file, and check everything in it; the failure is in its `error`. 0: there are no bytes, for the reason in
 * errno. */
static int open_file(opened_t *opened, const char *path)
{
    uint64_t size;
    const void *bytes = qfb_map(path, &size);
    opened->shards = NULL;
    if (bytes && qfb_open(&opened->file, bytes, size, QFB_CHECK_DATA) == QFB_SHARDS)
        open_shards(opened, path);
    return bytes != NULL;
}

static void close_file(opened_t *opened)
{
    uint32_t i;
    if (!opened->file.bytes)
        return;
    for (i = 0; opened->shards && i < qfb_shard_count(&opened->file); i++)
        if (opened->shards[i].bytes)
            qfb_unmap(opened->shards[i].bytes, opened->shards[i].size);
    free(opened->shards);
    qfb_unmap(opened->file.bytes, opened->file.size);
}

#endif

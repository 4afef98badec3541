/* far FILE FOLDER: prints the integers of the array "last" of a file that is too large to check all of it, and whether
 * its digest is right. One that has shards is opened twice: at first the last one is missing. */
#define _XOPEN_SOURCE 700
#define QFB_POSIX
#include "../failure.h"
#include <stdlib.h>

int main(int count, char **arguments)
{
    static qfb_shard shards[16];
    qfb_file file;
    qfb_tensor tensor;
    uint64_t size, i;
    uint32_t k;
    const void *last, *bytes = count == 3 ? qfb_map(arguments[1], &size) : NULL;
    if (!bytes)
        return 2;
    if (qfb_open(&file, bytes, size, 0) == QFB_SHARDS && qfb_shard_count(&file) <= 16) {
        for (k = 0; k < qfb_shard_count(&file); k++)
            shards[k].bytes = qfb_map_shard(&file, k, arguments[2], &shards[k].size);
        last = shards[k - 1].bytes, shards[k - 1].bytes = NULL; /* missing at first */
        if (!qfb_open_shards(&file, shards, 0))
            return 3;
        shards[k - 1].bytes = last;
        qfb_open_shards(&file, shards, 0);
    }
    if (file.error.code || qfb_find_tensor(&file, "last", &tensor) || qfb_check_buffer(&file, tensor.array.buffer)) {
        print_failure(arguments[1], &file);
        return 1;
    }
    for (i = 0; i < tensor.array.size / 2; i++)
        printf("%d ", (int)qfb_stored(tensor.array.data, tensor.dtype, i));
    putchar('\n');
    return 0;
}

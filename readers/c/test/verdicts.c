/* Opens many files in one process: from stdin come sizes (4 bytes, little-endian), each followed by a file; for each a
 * line says the code and the rule that is broken. Every file gets memory of its own size, so that a sanitizer sees the
 * first byte that is read beyond it. With an argument digests are not checked. */
#include "../qfb.h"
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    unsigned flags = count > 1 ? QFB_SKIP_DIGESTS : QFB_CHECK_DATA;
    uint8_t head[4], *bytes;
    (void)arguments;
    while (fread(head, 1, 4, stdin) == 4) {
        uint32_t size = qfb_u32_(head);
        qfb_file file;
        if (!(bytes = malloc(size ? size : 1)) || fread(bytes, 1, size, stdin) != size)
            return 2;
        qfb_open(&file, bytes, size, flags);
        printf("%d %s\n", (int)file.error.code, file.error.rule);
        fflush(stdout); /* whoever sends one file after the other waits for it */
        free(bytes);
    }
    return 0;
}

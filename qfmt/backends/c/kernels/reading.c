static int number(FILE *file, int bytes, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < bytes; i++) {
        const int byte = getc(file);
        if (byte == EOF)
            return 0;
        *value |= (uint64_t)byte << (8 * i);
    }
    return 1;
}

static int wrong_size(const char *how)
{
    fprintf(stderr, "main: the input is too %s: TAKES\n", how);
    return 2;
}

static int written(int status)
{
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    fputs("main: the output cannot be written\n", stderr);
    return 2;
}

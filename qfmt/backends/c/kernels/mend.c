/* y is right but for a few sums of each channel: in every slot one of them, and what is to be added then. */
static void mend(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict sums,
                 const int8_t *restrict change, int32_t slots)
{
    for (int32_t s = 0; s < slots; s++, sums += n, change += n)
        for (int32_t i = 0; i < n; i++)
            y[i] = (Y)(y[i] + (x[i] == sums[i] ? change[i] : 0));
}

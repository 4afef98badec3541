/* A pooling window, channels last; along each dimension: its first input, how many it meets, how many it divides by. */
struct pool {
    int32_t channels, in[3], out[3], dilation[3];
    const int32_t *first[3], *taps[3], *divisor[3];
};

/* A window that slides over an input of up to three spatial dimensions, channels last. */
struct window {
    int32_t channels;      /* of one position of the input */
    int32_t in[3], out[3]; /* sizes: depth, height, width */
    int32_t kernel[3], stride[3], dilation[3], pad[3];
};

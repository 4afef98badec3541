// Reads `.qfb` files, quantized neural networks, in Node and in browsers. Start with `open`.

export type { Integer, StoredArray } from "./arrays.js";
export { DTYPES, unpack, type DTypeInfo, type DTypeName, type TypedArray } from "./dtypes.js";
export { QfbError, type ErrorDetails } from "./errors.js";
export { floatOfCode, toFloat32 } from "./floats.js";
export type { Attribute, Lazy, Node } from "./graph.js";
export type { HttpOptions } from "./http.js";
export { open, type Model, type OpenOptions, type Tensors } from "./model.js";
export type { Level, Observed, Quantization } from "./quantization.js";
export type { FileHandle, Openable, Source } from "./sources.js";
export type { Tensor } from "./tensor.js";
export type { TestVector } from "./vectors.js";

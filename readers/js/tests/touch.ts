// Damaged files, and what it means to survive reading one.

import { open, QfbError, type Model, type OpenOptions } from "qfb-reader";

/** Uses everything that a model holds. */
export async function touch(model: Model): Promise<void> {
  for (const tensor of model.tensors) {
    if (model.tensors.get(tensor.name) !== tensor) {
      throw new Error(`${tensor.name} is not found`);
    }
    if (tensor.data) {
      const values = await tensor.array();
      const real = await tensor.dequantize();
      if (values.length !== tensor.data.length || real.length !== values.length) {
        throw new Error(`${tensor.name} has ${values.length} and ${real.length} values`);
      }
    }
  }
  for (const { inputs, outputs } of model.nodes) {
    if (![...inputs, ...outputs].every((name) => name === "" || model.tensors.has(name))) {
      throw new Error("a node names no tensor");
    }
  }
  for (const { inputs, outputs } of model.vectors) {
    for (const value of [...inputs.values(), ...outputs.values()]) {
      await value.array();
    }
  }
  await model.contentId();
}

/** "ok", or the rule by which a file is refused. Any error but QfbError escapes. */
export async function verdict(file: Uint8Array, options?: OpenOptions): Promise<string> {
  try {
    await touch(await open(file, options));
    return "ok";
  } catch (error) {
    if (!(error instanceof QfbError) || /[\n\r]/.test(error.message)) {
      throw error;
    }
    return error.rule || error.what;
  }
}

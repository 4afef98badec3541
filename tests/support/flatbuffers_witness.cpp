// An independent reader of .qfb files: FlatBuffers' own C++ verifier and generated code, nothing of qfmt.
//
//   witness describe FILE     verifies the metadata, then prints the model line by line, as test_witnesses.py does
//   witness verify            reads [u32 size][metadata] … from stdin, prints 1 or 0 for each: what the verifier says

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "qfb_generated.h"

using flatbuffers::String;
using flatbuffers::Vector;
template <typename T> using Optional = flatbuffers::Optional<T>;

static std::string hex(const uint8_t *bytes, size_t size) {
  std::string out;
  char digits[3];
  for (size_t i = 0; i < size; i++) {
    snprintf(digits, sizeof digits, "%02x", bytes[i]);
    out += digits;
  }
  return out;
}

static std::string text(const String *s) {
  return s ? "'" + hex(reinterpret_cast<const uint8_t *>(s->c_str()), s->size()) : "'";
}

static std::string number(int64_t value) { return std::to_string(value); }

static std::string number(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  std::ostringstream out;
  out << "f" << std::hex << bits;
  return out.str();
}

template <typename T> static std::string optional(Optional<T> value) {
  return value ? number(static_cast<int64_t>(*value)) : "-";
}

template <typename T> static std::string numbers(const Vector<T> *values) {
  if (!values) return "-";
  std::string out = "[";
  for (T value : *values) out += " " + number(value);
  return out + " ]";
}
template <> std::string numbers(const Vector<int32_t> *values) {
  if (!values) return "-";
  std::string out = "[";
  for (int32_t value : *values) out += " " + number(static_cast<int64_t>(value));
  return out + " ]";
}

static std::string texts(const Vector<flatbuffers::Offset<String>> *values) {
  std::string out = "[";
  if (values)
    for (const String *value : *values) out += " " + text(value);
  return out + " ]";
}

static uint64_t fnv1a(const uint8_t *bytes, size_t size) {
  uint64_t hash = 14695981039346656037ull;
  for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

static void pairs(const char *name, const Vector<flatbuffers::Offset<qfb::KeyValue>> *values) {
  if (values)
    for (const auto *pair : *values)
      std::cout << name << " " << text(pair->key()) << " " << text(pair->value()) << "\n";
}

static std::string attribute(const qfb::Attribute *a) {
  switch (a->type()) {
    case qfb::AttributeType::Int: return number(a->int_value());
    case qfb::AttributeType::Float: return number(a->float_value());
    case qfb::AttributeType::String: return text(a->string_value());
    case qfb::AttributeType::Ints: return numbers(a->ints());
    case qfb::AttributeType::Floats: return numbers(a->floats());
    case qfb::AttributeType::Strings: return texts(a->strings());
    default: return "?";
  }
}

static void describe(const std::vector<uint8_t> &file) {
  uint64_t data_offset;
  std::memcpy(&data_offset, file.data() + 24, sizeof data_offset);
  const qfb::Model *model = qfb::GetModel(file.data());
  const qfb::Graph *graph = model->graph();
  std::cout << "model " << text(model->producer()) << " " << text(model->engine()) << " " << text(graph->name())
            << "\ninputs " << numbers(graph->inputs()) << "\noutputs " << numbers(graph->outputs()) << "\n";
  const auto data = [&](Optional<uint32_t> index) -> std::string {
    if (!index) return "";
    const qfb::Buffer *b = model->buffers()->Get(*index);
    std::ostringstream out;
    out << " data " << b->size() << " " << hex(b->sha256()->bytes()->data(), 32) << " "
        << fnv1a(file.data() + data_offset + b->offset(), b->size());
    return out.str();
  };
  const auto array = [&](const auto *a) {
    if (!a) return;
    std::cout << "  array " << static_cast<int>(a->dtype()) << " " << numbers(a->shape());
    if (a->bytes()) std::cout << " " << hex(a->bytes()->data(), a->bytes()->size());
    std::cout << data(a->buffer()) << "\n";
  };
  const auto level = [&](const qfb::SecondLevel *l) {
    if (!l) return;
    std::cout << "  level " << numbers(l->block()) << "\n";
    for (const qfb::Numbers *a : {l->scale(), l->zero_point(), l->offset(), l->table()}) array(a);
  };
  const auto quantization = [&](const qfb::Quantization *q) {
    std::cout << "  quantization " << numbers(q->block()) << " " << optional(q->quant_min()) << " "
              << optional(q->quant_max()) << "\n";
    array(q->scale()), level(q->scale()->quantization()), array(q->zero_point()), array(q->offset());
    if (q->offset()) level(q->offset()->quantization());
    array(q->table()), array(q->group_index());
  };
  pairs("source", model->source());
  pairs("metadata", model->metadata());
  for (const qfb::Tensor *t : *graph->tensors()) {
    if (graph->tensors()->LookupByKey(t->name()->c_str()) != t) std::cout << "NOT FOUND BY KEY\n";
    std::cout << "tensor " << text(t->name()) << " " << static_cast<int>(t->dtype()) << " " << numbers(t->shape()) << " "
              << texts(t->dims()) << " " << texts(t->aliases()) << "\n";
    if (const qfb::Quantization *q = t->quantization()) {
      quantization(q);
      if (const qfb::Observed *o = q->observed())
        std::cout << "  observed " << text(o->observer()) << " " << numbers(o->minimum()) << " "
                  << numbers(o->maximum()) << " " << optional(o->quant_min()) << " " << optional(o->quant_max()) << " "
                  << text(o->qscheme()) << "\n";
    }
    if (t->buffer()) std::cout << " " << data(t->buffer()) << "\n";
  }
  for (const qfb::Node *n : *graph->nodes()) {
    std::cout << "node " << text(n->operator_()) << " " << n->version() << " " << numbers(n->inputs()) << " "
              << numbers(n->outputs()) << " " << text(n->rule()) << " " << text(n->name()) << " "
              << text(n->scope()) << " " << text(n->source_operator()) << "\n";
    if (n->attributes())
      for (const qfb::Attribute *a : *n->attributes())
        std::cout << "  attribute " << text(a->name()) << " " << static_cast<int>(a->type()) << " " << attribute(a) << "\n";
  }
  if (!model->vectors()) return;
  for (const qfb::TestVector *v : *model->vectors()) {
    std::cout << "vector " << text(v->name()) << "\n";
    for (const auto *values : {v->inputs(), v->outputs()})
      for (const qfb::TestValue *value : *values)
        std::cout << "  value " << numbers(value->shape()) << data(value->buffer()) << "\n";
  }
}

static bool verified(const uint8_t *bytes, size_t size) {
  flatbuffers::Verifier verifier(bytes, size);
  return qfb::VerifyModelBuffer(verifier);
}

int main(int argc, char **argv) {
  if (argc == 3 && std::string(argv[1]) == "describe") {
    std::ifstream in(argv[2], std::ios::binary);
    std::vector<uint8_t> file((std::istreambuf_iterator<char>(in)), {});
    uint64_t meta_size;
    std::memcpy(&meta_size, file.data() + 16, sizeof meta_size);
    if (!verified(file.data(), meta_size)) return 3;
    describe(file);
    return 0;
  }
  uint32_t size;
  while (std::cin.read(reinterpret_cast<char *>(&size), sizeof size)) {
    std::vector<uint64_t> aligned((size + 7) / 8);
    std::cin.read(reinterpret_cast<char *>(aligned.data()), size);
    std::cout << verified(reinterpret_cast<uint8_t *>(aligned.data()), size);
  }
  return 0;
}

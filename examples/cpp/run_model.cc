// Runs a native model of stormdrop without Python:  run_model MODEL.sd [INPUT OUTPUT]
//
// INPUT holds the elements of all inputs one after the other, as numpy.ndarray.tofile writes them; without it the
// inputs are ones. OUTPUT gets those of all outputs. The program prints the outputs and the time of a call.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr DLDevice kCpu{kDLCPU, 0};

// Kernels read inputs whose memory begins at a multiple of 64 bytes.
struct AlignedMemory {
  void AllocData(DLTensor* tensor) {
    size_t bytes = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, bytes ? bytes : 64);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// A part of a mapped file, which stays mapped.
struct MappedMemory {
  void* begin;
  void AllocData(DLTensor* tensor) { tensor->data = begin; }
  void FreeData(DLTensor*) {}
};

// A loaded model. It is for one thread at a time: several threads make one `Machine` each of one `executable` and its
// `weights`, and share the code and the constants.
class Machine {
 public:
  Machine(const ffi::Module& executable, const std::vector<ffi::Tensor>& weights)
      : machine_(executable->GetFunction("vm_load_executable").value()().cast<ffi::Module>()) {
    constexpr int kPooledAllocator = 2;
    machine_->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
    main_ = machine_->GetFunction("main").value();
    // What `main` takes after the inputs: the large constants, and the memory between kernels.
    for (const ffi::Tensor& weight : weights) after_inputs_.push_back(weight);
    if (auto workspace = machine_->GetFunction("workspace")) {
      for (ffi::Any tensor : (*workspace)().cast<ffi::Array<ffi::Any>>()) after_inputs_.push_back(tensor);
    }
  }

  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) const {
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    arguments.insert(arguments.end(), after_inputs_.begin(), after_inputs_.end());
    ffi::Any result;
    main_.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    if (auto one = result.as<ffi::Tensor>()) return {*one};
    std::vector<ffi::Tensor> outputs;
    for (ffi::Any output : result.cast<ffi::Array<ffi::Any>>()) outputs.push_back(output.cast<ffi::Tensor>());
    return outputs;
  }

 private:
  ffi::Module machine_;
  ffi::Function main_;
  std::vector<ffi::Any> after_inputs_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  if (!file || !(content << file.rdbuf())) throw std::runtime_error(path + ": cannot be read");
  return content.str();
}

// What metadata.json says about the model, after a check that this program can run it.
json::Object ReadMetadata(const std::string& folder) {
  if (!std::ifstream(folder)) throw std::runtime_error(folder + ": no such folder");
  if (!std::ifstream(folder + "/metadata.json")) throw std::runtime_error(folder + ": no stormdrop model");
  ffi::String error;
  json::Value document = json::Parse(ReadFile(folder + "/metadata.json"), &error);
  if (!error.empty() || !document.as<json::Object>()) throw std::runtime_error(folder + ": no stormdrop model");
  auto metadata = document.cast<json::Object>();
  if (!metadata["checksums"].cast<json::Object>().count("kernels.so")) {
    throw std::runtime_error(folder + ": is no native model; save it with native=True, or tune it with --native");
  }
  return metadata;
}

// Drops what is written to standard error: TVM writes a warning for each constant that it loads.
class Quiet {
 public:
  Quiet() : saved_(dup(STDERR_FILENO)) {
    int null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    close(null);
  }
  ~Quiet() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }

 private:
  int saved_;
};

ffi::Module LoadExecutable(const std::string& folder) {
  auto load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.relax.VMExecutable");
  Quiet quiet;
  auto executable = load(folder + "/model.vm").cast<ffi::Module>();
  executable->ImportModule(ffi::Module::LoadFromFile(folder + "/kernels.so"));
  return executable;
}

std::vector<int64_t> Shape(const json::Object& tensor) {
  std::vector<int64_t> shape;
  for (json::Value size : tensor["shape"].cast<json::Array>()) shape.push_back(size.cast<int64_t>());
  return shape;
}

DLDataType Type(const json::Object& tensor) { return ffi::StringToDLDataType(tensor["dtype"].cast<ffi::String>()); }

std::streamsize Bytes(const ffi::Tensor& tensor) {
  return static_cast<std::streamsize>(ffi::GetDataSize(tensor));
}

// Maps the large constants, which metadata.json describes for each size of the model. A small model has none.
std::vector<ffi::Tensor> MapWeights(const std::string& folder, const json::Object& metadata) {
  std::vector<ffi::Tensor> weights;
  if (!metadata.count("weights")) return weights;
  std::string path = folder + "/weights.bin";
  int file = open(path.c_str(), O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) throw std::runtime_error(path + ": cannot be read");
  void* pages = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (pages == MAP_FAILED) throw std::runtime_error(path + ": cannot be mapped");
  for (json::Value value : metadata["weights"].cast<json::Array>()[0].cast<json::Array>()) {
    auto weight = value.cast<json::Object>();
    auto shape = Shape(weight);
    auto offset = weight["offset"].cast<int64_t>();
    weights.push_back(ffi::Tensor::FromNDAlloc(MappedMemory{static_cast<char*>(pages) + offset},
                                               ffi::ShapeView(shape.data(), shape.size()), Type(weight), kCpu));
    if (offset + Bytes(weights.back()) > status.st_size) throw std::runtime_error(path + ": is too short");
  }
  return weights;
}

std::vector<ffi::Tensor> MakeInputs(const json::Array& described) {
  std::vector<ffi::Tensor> inputs;
  for (json::Value value : described) {
    auto input = value.cast<json::Object>();
    auto shape = Shape(input);
    inputs.push_back(
        ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::ShapeView(shape.data(), shape.size()), Type(input), kCpu));
  }
  return inputs;
}

void FillInputs(const std::vector<ffi::Tensor>& inputs, const char* path) {
  std::ifstream file;
  if (path != nullptr) {
    file.open(path, std::ios::binary);
    if (!file) throw std::runtime_error(std::string(path) + ": cannot be read");
  }
  for (const ffi::Tensor& input : inputs) {
    auto* bytes = static_cast<char*>(input.data_ptr());
    auto size = Bytes(input);
    if (path != nullptr) {
      if (!file.read(bytes, size)) throw std::runtime_error(std::string(path) + ": holds less than the inputs");
    } else if (input.dtype().code == kDLFloat && input.dtype().bits == 32) {
      std::fill_n(reinterpret_cast<float*>(bytes), size / 4, 1.0f);
    } else {
      std::fill_n(bytes, size, 0);
    }
  }
}

void Run(const std::string& folder, const char* input, const char* output) {
  json::Object metadata = ReadMetadata(folder);
  Machine machine(LoadExecutable(folder), MapWeights(folder, metadata));
  std::vector<ffi::Tensor> inputs = MakeInputs(metadata["inputs"].cast<json::Array>());
  FillInputs(inputs, input);
  machine.Run(inputs);  // starts the threads and fills the caches; the second call is timed
  auto begin = std::chrono::steady_clock::now();
  std::vector<ffi::Tensor> outputs = machine.Run(inputs);
  std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;

  auto described = metadata["outputs"].cast<json::Array>();
  std::ofstream file;
  if (output != nullptr) file.open(output, std::ios::binary);
  for (size_t position = 0; position < outputs.size(); ++position) {
    std::cout << described[position].cast<json::Object>()["name"].cast<ffi::String>() << ":";
    for (int64_t size : outputs[position].shape()) std::cout << " " << size;
    std::cout << "\n";
    auto size = Bytes(outputs[position]);
    if (output != nullptr) file.write(static_cast<const char*>(outputs[position].data_ptr()), size);
  }
  if (output != nullptr && !file.flush()) throw std::runtime_error(std::string(output) + ": cannot be written");
  std::cout << taken.count() << " ms\n";
}

// The settings of TVM's threads that stormdrop makes in Python; what the user has set stays. TVM reads them when its
// threads start.
void ConfigureThreads() {
  setenv("TVM_THREAD_POOL_SPIN_COUNT", "1000", 0);
  setenv("TVM_BIND_THREADS", "0", 0);
  setenv("TVM_NUM_THREADS", std::to_string(std::thread::hardware_concurrency()).c_str(), 0);
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::cerr << "usage: run_model MODEL.sd [INPUT OUTPUT]\n";
    return 2;
  }
  ConfigureThreads();
  try {
    Run(argv[1], argc == 4 ? argv[2] : nullptr, argc == 4 ? argv[3] : nullptr);
  } catch (const ffi::Error& error) {
    std::cerr << "run_model: " << argv[1] << ": " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << "\n";
    return 1;
  }
  return 0;
}

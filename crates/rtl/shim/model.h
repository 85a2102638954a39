// A Verilated model behind pins that are found by name, so that Rust drives every module alike.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>
#include "verilated.h"

// The number of the active fault; RTL with faults compiled in reads it.
uint32_t rtl_fault();

struct Pin {
    const char* name;
    void* at;
    int bits;
};

struct Model {
    std::vector<Pin> pins;
    virtual ~Model() = default;
    virtual void eval() = 0;
};

template <class Top>
struct ModelOf final : Model {
    VerilatedContext context;
    std::unique_ptr<Top> top;
    explicit ModelOf(uint32_t seed) {
        // Registers start with random bits, so that a missing reset shows.
        context.randReset(2);
        context.randSeed(static_cast<int>(seed));
        top = std::make_unique<Top>(&context, "top");
    }
    ~ModelOf() override { top->final(); }
    void eval() override { top->eval(); }
};

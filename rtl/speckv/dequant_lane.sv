// Value of one code: code · scale, rounded as a single and then as a half, or as a bfloat.
//
// Interface: a stalling pipeline, which moves while `en`.
// Latency 4 cycles, initiation interval 1.
module dequant_lane (
    input  logic        clk,
    input  logic        en,
    input  logic        bf16,
    input  logic [7:0]  code,
    input  logic [36:0] scale,
    output logic [15:0] value
);
  logic [36:0] open, opened, factor, product;

  from_int opening (
      .value({code[7], code}),
      .open
  );
  always_ff @(posedge clk)
    if (en) begin
      opened <= open;
      factor <= scale;
    end

  // A code has eight bits with its magnitude of at most 128.
  fmul #(
      .MA(8)
  ) multiply (
      .clk,
      .en,
      .a(opened),
      .b(factor),
      .y(product)
  );
  to_16 rounding (
      .clk,
      .en,
      .bf16,
      .x(product),
      .value
  );
endmodule

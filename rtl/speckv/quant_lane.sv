// Code of one value: round(x · inverse), to nearest, ties to even, clamped to ±127.
//
// Interface: a stalling pipeline, which moves while `en`. The inverse stays for a page. The value is
// a half, or with `bf16` a bfloat.
// Latency 4 cycles, initiation interval 1.
module quant_lane (
    input  logic        clk,
    input  logic        en,
    input  logic        bf16,
    input  logic [15:0] value,
    input  logic [36:0] inverse,
    output logic [7:0]  code
);
  logic [36:0] open, opened, factor, product;
  logic [8:0] rounded;

  from_16 opening (
      .bf16,
      .value,
      .open
  );
  always_ff @(posedge clk)
    if (en) begin
      opened <= open;
      factor <= inverse;
    end

  // The mantissa of a half has eleven bits, that of a bfloat has eight.
  fmul #(
      .MA(11)
  ) multiply (
      .clk,
      .en,
      .a(opened),
      .b(factor),
      .y(product)
  );
  to_int rounding (
      .clk,
      .en,
      .x(product),
      .y(rounded)
  );
  always_comb begin
    code = rounded[7:0];
    if (!rounded[8] && rounded[7:0] > 8'd127) code = 8'd127;
    if (rounded[8] && rounded[7:0] < 8'd129) code = 8'd129;
  end
endmodule

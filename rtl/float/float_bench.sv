// Test bench of the arithmetic modules: two singles in, sum, product and quotient out.
//
// Interface: `start` starts the division; all else moves each cycle.
module float_bench (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,
    input  logic [31:0] a,
    input  logic [31:0] b,
    output logic [31:0] sum,
    output logic [15:0] sum_half,
    output logic [15:0] sum_bfloat,
    output logic [8:0]  sum_int,
    output logic [31:0] product,
    output logic [31:0] quotient,
    output logic        done,
    output logic [31:0] quotient_pipe,
    output logic [31:0] widened
);
  logic [36:0] x, y, add, multiply, divide, divide_pipe, half;

  from_f32 open_a (
      .single(a),
      .open(x)
  );
  from_f32 open_b (
      .single(b),
      .open(y)
  );
  from_f16 open_half (
      .half(a[15:0]),
      .open(half)
  );
  fadd adder (
      .clk,
      .en(1'b1),
      .a(x),
      .b(y),
      .y(add)
  );
  fmul multiplier (
      .clk,
      .en(1'b1),
      .a(x),
      .b(y),
      .y(multiply)
  );
  fdiv divider (
      .clk,
      .rst,
      .start,
      .a(x),
      .b(y),
      .done,
      .y(divide)
  );
  fdiv_pipe pipe (
      .clk,
      .en(1'b1),
      .a(x),
      .b(y),
      .y(divide_pipe)
  );
  to_f16 narrow (
      .clk,
      .en(1'b1),
      .x(add),
      .half(sum_half)
  );
  to_bf16 narrow_more (
      .clk,
      .en(1'b1),
      .x(add),
      .bfloat(sum_bfloat)
  );
  to_int round (
      .clk,
      .en(1'b1),
      .x(add),
      .y(sum_int)
  );
  to_f32 close_sum (
      .open(add),
      .single(sum)
  );
  to_f32 close_product (
      .open(multiply),
      .single(product)
  );
  to_f32 close_quotient (
      .open(divide),
      .single(quotient)
  );
  to_f32 close_quotient_pipe (
      .open(divide_pipe),
      .single(quotient_pipe)
  );
  to_f32 close_half (
      .open(half),
      .single(widened)
  );
endmodule

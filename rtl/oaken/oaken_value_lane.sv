// Value of one code: code · step + least, and the bound of its side (Oaken §4.2; inlier and outlier
// dequantizer of §5.2).
//
// Interface: a stalling pipeline, which moves while `en`. All numbers are of the code's group, and
// `bound` of its side. The value is a half, or with `bf16` a bfloat.
// Latency 10 cycles, initiation interval 1.
module oaken_value_lane (
    input  logic        clk,
    input  logic        en,
    input  logic        bf16,
    input  logic [4:0]  code,
    input  logic [36:0] step,
    input  logic [36:0] least,
    input  logic [36:0] bound,
    output logic [15:0] value
);
  logic [36:0] open, opened, factor, product, sum, shifted, leasts[0:2], bounds[0:5];

  from_int opening (
      .value({4'd0, code}),
      .open
  );
  always_ff @(posedge clk)
    if (en) begin
      opened <= open;
      factor <= step;
    end
  fmul #(
      .MA(5)
  ) multiply (
      .clk,
      .en,
      .a(opened),
      .b(factor),
      .y(product)
  );
  for (genvar k = 0; k < 3; k++) begin : g_least
    logic [36:0] least_q;
    always_ff @(posedge clk) if (en) least_q <= (k == 0) ? least : leasts[(k == 0) ? 0 : k-1];
    assign leasts[k] = least_q;
  end
  fadd add_least (
      .clk,
      .en,
      .a(product),
      .b(leasts[2]),
      .y(sum)
  );
  for (genvar k = 0; k < 6; k++) begin : g_bound
    logic [36:0] bound_q;
    always_ff @(posedge clk) if (en) bound_q <= (k == 0) ? bound : bounds[(k == 0) ? 0 : k-1];
    assign bounds[k] = bound_q;
  end
  fadd add_bound (
      .clk,
      .en,
      .a(sum),
      .b(bounds[5]),
      .y(shifted)
  );
  to_16 rounding (
      .clk,
      .en,
      .bf16,
      .x(shifted),
      .value
  );
endmodule

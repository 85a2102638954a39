// Code of one value: round((x - mean) · inverse), to nearest, ties to even, saturated to ±255,
// which fits no width.
//
// Interface: a stalling pipeline, which moves while `en`. All numbers are open (from_f16.sv).
// Latency 7 cycles, initiation interval 1.
module qpack_code_lane (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] open,
    input  logic [36:0] mean,
    input  logic [36:0] inverse,
    output logic [8:0]  code
);
  logic [36:0] value, minus_mean, distance, product, factor;
  logic [36:0] factors[0:3];

  always_ff @(posedge clk)
    if (en) begin
      value <= open;
      minus_mean <= {mean[36:35], !mean[34], mean[33:0]};
    end
  fadd subtract (
      .clk,
      .en,
      .a(value),
      .b(minus_mean),
      .y(distance)
  );
  for (genvar k = 0; k < 4; k++) begin : g_delay
    logic [36:0] delayed;
    always_ff @(posedge clk) if (en) delayed <= (k == 0) ? inverse : factors[(k == 0) ? 0 : k-1];
    assign factors[k] = delayed;
  end
  assign factor = factors[3];
  fmul multiply (
      .clk,
      .en,
      .a(distance),
      .b(factor),
      .y(product)
  );
  to_int rounding (
      .clk,
      .en,
      .x(product),
      .y(code)
  );
endmodule

// Code of one value: the nearest code of its side of its group's grid (Oaken §4.2, eq. 2 and 3;
// inlier and outlier quantizer of §5.2).
//
// Interface: a stalling pipeline, which moves while `en`. The chosen group's least value and
// inverse step, and the last code of its lower and the first of its upper side, come with the rest.
// Latency 8 cycles, initiation interval 1.
module oaken_code_lane (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] rest,
    input  logic [36:0] least,
    input  logic [36:0] inverse,
    input  logic [4:0]  below,
    input  logic [4:0]  above,
    output logic [4:0]  code
);
  logic [36:0] value, minus_least, distance, product, factors[0:3];
  logic [10:0] sides[0:6];
  logic [8:0] rounded;
  logic [4:0] nearest, low_end, high_end;
  logic minus, top_is_31;

  always_ff @(posedge clk)
    if (en) begin
      value <= rest;
      minus_least <= {least[36:35], !least[34], least[33:0]};
    end
  fadd subtract (
      .clk,
      .en,
      .a(value),
      .b(minus_least),
      .y(distance)
  );
  for (genvar k = 0; k < 4; k++) begin : g_factor
    logic [36:0] factor_q;
    always_ff @(posedge clk) if (en) factor_q <= (k == 0) ? inverse : factors[(k == 0) ? 0 : k-1];
    assign factors[k] = factor_q;
  end
  fmul multiply (
      .clk,
      .en,
      .a(distance),
      .b(factors[3]),
      .y(product)
  );
  to_int rounding (
      .clk,
      .en,
      .x(product),
      .y(rounded)
  );
  for (genvar k = 0; k < 7; k++) begin : g_side
    logic [10:0] side_q;
    always_ff @(posedge clk)
      if (en) side_q <= (k == 0) ? {rest[34] && !rest[35], below, above} : sides[(k == 0) ? 0 : k-1];
    assign sides[k] = side_q;
  end

  assign {minus, low_end, high_end} = sides[6];
  assign top_is_31 = !rounded[8] && rounded[7:0] > 8'd31;
  always_comb begin
    nearest = rounded[4:0];
    if (rounded[8]) nearest = 5'd0;
    if (top_is_31) nearest = 5'd31;
  end
  always_ff @(posedge clk)
    if (en) begin
      if (minus) code <= (nearest < low_end) ? nearest : low_end;
      else code <= (nearest > high_end) ? nearest : high_end;
    end
endmodule

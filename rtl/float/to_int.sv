// An open number (from_f16.sv) rounded to an integer, to nearest, ties to even, saturated to ±255.
//
// Interface: a stalling pipeline, which moves while `en`.
// Latency 1 cycle, initiation interval 1.
module to_int (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] x,
    output logic [8:0]  y
);
  // Eight integer bits, a guard bit, and the rest.
  logic [31:0] fixed;
  logic [8:0] rounded, magnitude;
  logic too_large, tiny, up;

  assign tiny = x[35] || $signed(x[33:24]) < -10'sd1;
  assign too_large = !x[35] && (x[36] || $signed(x[33:24]) > 10'sd7);
  // Bit 24 of `fixed` is worth 1.
  assign fixed = {8'd0, x[23:0]} << (x[27:24] + 4'd1);
  assign up = fixed[23] && (fixed[24] || |fixed[22:0]);
  assign rounded = {1'b0, fixed[31:24]} + {8'd0, up};

  always_comb begin
    if (too_large || (!tiny && rounded[8])) magnitude = 9'd255;
    else magnitude = tiny ? 9'd0 : rounded;
  end

  always_ff @(posedge clk) if (en) y <= x[34] ? -magnitude : magnitude;
endmodule

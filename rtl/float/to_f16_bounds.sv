// The nearest halves below and above an open number (from_f16.sv), as signed integers in the order
// of the halves: the magnitude's bits, negated for negative numbers. Zero has no sign.
//
// Interface: combinational. Numbers beyond the halves have ±31744, infinity, on the far side.
module to_f16_bounds (
    input  logic [36:0]        x,
    output logic signed [15:0] down,
    output logic signed [15:0] up
);
  logic signed [9:0] exponent;
  logic subnormal, vanishes, huge, inexact;
  logic [3:0] shift;
  logic [34:0] shifted;
  logic [15:0] inner, outer;

  assign exponent = x[33:24];
  assign subnormal = exponent < -10'sd14;
  assign vanishes = exponent < -10'sd24;
  assign huge = x[36] || (!x[35] && exponent > 10'sd15);
  assign shift = subnormal ? 4'(-10'sd14 - exponent) : 4'd0;
  assign shifted = {x[23:0], 11'd0} >> shift;
  always_comb begin
    inexact = |shifted[23:0];
    inner = {1'b0, subnormal ? 5'd0 : 5'(exponent + 10'sd14), 10'd0} + {5'd0, shifted[34:24]};
    if (x[35]) begin
      inner   = '0;
      inexact = 1'b0;
    end else if (huge) begin
      inner   = 16'h7bff;
      inexact = 1'b1;
    end else if (vanishes) begin
      inner   = '0;
      inexact = 1'b1;
    end
    outer = inner + {15'd0, inexact};
  end
  assign down = x[34] ? -outer : inner;
  assign up   = x[34] ? -inner : outer;
endmodule

// Sum of two open numbers (from_f16.sv), rounded to 24 bits, to nearest, ties to even.
//
// Sums of singles are never inexact below 2^-126, so this equals the sum of two singles. If an
// operand is infinite, so is the sum, with its sign.
//
// Interface: a stalling pipeline, which moves while `en`.
// Latency 3 cycles, initiation interval 1.
module fadd (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] a,
    input  logic [36:0] b,
    output logic [36:0] y
);
  // Stage 1: the larger first, the smaller aligned with three more bits, the last one sticky.
  logic swap, b_larger;
  logic [36:0] major, minor;
  logic [9:0] gap;
  logic [4:0] shift;
  logic [50:0] wide;

  always_comb begin
    if (a[35] || b[35]) b_larger = a[35];
    else if (a[33:24] == b[33:24]) b_larger = b[23:0] > a[23:0];
    else b_larger = $signed(b[33:24]) > $signed(a[33:24]);
  end
  assign swap  = (b_larger || b[36]) && !a[36];
  assign major = swap ? b : a;
  assign minor = swap ? a : b;
  assign gap   = major[33:24] - minor[33:24];
  assign shift = (gap > 10'd27) ? 5'd27 : gap[4:0];
  assign wide  = {minor[23:0], 27'd0} >> shift;

  logic one_special, one_zero, one_sign, one_minus;
  logic [9:0] one_exponent;
  logic [23:0] one_large;
  logic [26:0] one_small;

  // Stage 2: the sum.
  logic two_special, two_zero, two_sign;
  logic [9:0] two_exponent;
  logic [27:0] two_sum;

  // Stage 3: normalized and rounded.
  logic [4:0] zeros;
  logic [27:0] normal;
  logic [9:0] exponent, exponent_up;
  logic up, carry;
  logic [23:0] mant;

  lead_zeros #(
      .W(28)
  ) lead (
      .x(two_sum),
      .count(zeros)
  );
  assign normal = two_sum << zeros;
  assign up = normal[3] && (normal[4] || |normal[2:0]);
  assign {carry, mant} = {1'b0, normal[27:4]} + {24'd0, up};
  assign exponent = two_exponent + 10'd1 - {5'd0, zeros};
  assign exponent_up = exponent + {9'd0, carry};

  always_ff @(posedge clk)
    if (en) begin
      one_special <= major[36];
      one_zero <= a[35] && b[35];
      // Zero plus zero is negative only if both are.
      one_sign <= (a[35] && b[35]) ? (a[34] && b[34]) : major[34];
      one_minus <= a[34] ^ b[34];
      one_exponent <= major[33:24];
      one_large <= major[23:0];
      one_small <= minor[35] ? '0 : {wide[50:25], |wide[24:0]};

      two_special <= one_special;
      two_sign <= one_sign;
      two_zero <= one_zero;
      two_exponent <= one_exponent;
      two_sum <= one_minus ? {1'b0, one_large, 3'd0} - {1'b0, one_small}
                           : {1'b0, one_large, 3'd0} + {1'b0, one_small};

      y <= {
        two_special || (!two_zero && zeros != 5'd28 && !exponent_up[9] && exponent_up[8:0] > 9'd127),
        two_zero || zeros == 5'd28,
        (zeros == 5'd28 && !two_zero) ? 1'b0 : two_sign,
        exponent_up,
        carry ? 24'h800000 : mant
      };
    end

  logic unused;
  assign unused = ^{major[35], minor[36], minor[34]};
endmodule

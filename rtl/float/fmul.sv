// Product of two open numbers (from_f16.sv), rounded to 24 bits, to nearest, ties to even: the
// product of two singles, except that results below 2^-126 keep 24 bits.
//
// Only the upper MA bits of a's mantissa count; the others are zero.
//
// Interface: a stalling pipeline, which moves while `en`.
// Latency 2 cycles, initiation interval 1.
module fmul #(
    parameter int MA = 24
) (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] a,
    input  logic [36:0] b,
    output logic [36:0] y
);
  localparam int P = MA + 24;

  logic [P-1:0] product, normal;
  logic special, zero, sign, guard, sticky, up, carry;
  logic [9:0] exponent, exponent_up;
  logic [23:0] mant;

  logic [MA-1:0] mant_a;
  assign mant_a = MA'(a[23:0] >> (24 - MA));

  // The product of two numbers in [1, 2) is in [1, 4).
  assign normal = product[P-1] ? product : product << 1;
  assign guard = normal[P-25];
  assign sticky = |normal[P-26:0];
  assign up = guard && (sticky || normal[P-24]);
  assign {carry, mant} = {1'b0, normal[P-1:P-24]} + {24'd0, up};
  assign exponent_up = exponent + {9'd0, product[P-1]} + {9'd0, carry};

  always_ff @(posedge clk)
    if (en) begin
      product <= mant_a * b[23:0];
      exponent <= a[33:24] + b[33:24];
      special <= a[36] || b[36];
      zero <= a[35] || b[35];
      sign <= a[34] ^ b[34];
      y <= {
        special || (!zero && !exponent_up[9] && exponent_up[8:0] > 9'd127),
        zero,
        sign,
        exponent_up,
        carry ? 24'h800000 : mant
      };
    end
endmodule

// Quotient of two open numbers (from_f16.sv), rounded to 24 bits, to nearest, ties to even: as
// fdiv.sv, with a stage for each bit, so that a new pair enters in each cycle.
//
// Interface: a stalling pipeline, which moves while `en`. A zero divisor gives zero, which the
// callers want.
// Latency 27 cycles, initiation interval 1.
module fdiv_pipe (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] a,
    input  logic [36:0] b,
    output logic [36:0] y
);
  // Row k holds the first k bits of the quotient behind a zero, and the rest for the next bit.
  for (genvar k = 0; k <= 25; k++) begin : g_row
    logic zero, sign;
    logic [9:0] exponent;
    logic [23:0] divisor;
    logic [24:0] rest;
    logic [k:0] quotient;
    if (k == 0) begin : g_in
      assign quotient = 1'b0;
      // The first bit of the quotient is a one.
      always_ff @(posedge clk)
        if (en) begin
          zero <= a[35] || b[35];
          sign <= a[34] ^ b[34];
          exponent <= a[33:24] - b[33:24] - {9'd0, a[23:0] < b[23:0]};
          divisor <= b[23:0];
          rest <= (a[23:0] >= b[23:0]) ? {1'b0, a[23:0]} : {a[23:0], 1'b0};
        end
    end else begin : g_bit
      logic fits;
      logic [24:0] diff;
      assign diff = g_row[k-1].rest - {1'b0, g_row[k-1].divisor};
      assign fits = g_row[k-1].rest >= {1'b0, g_row[k-1].divisor};
      always_ff @(posedge clk)
        if (en) begin
          zero <= g_row[k-1].zero;
          sign <= g_row[k-1].sign;
          exponent <= g_row[k-1].exponent;
          divisor <= g_row[k-1].divisor;
          rest <= fits ? diff << 1 : g_row[k-1].rest << 1;
          quotient <= {g_row[k-1].quotient, fits};
        end
    end
  end

  // 24 bits, and one more that rounds.
  logic [25:0] quotient;
  logic up, carry;
  logic [23:0] mant;
  assign quotient = g_row[25].quotient;
  assign up = quotient[0] && (quotient[1] || g_row[25].rest != 25'd0);
  assign {carry, mant} = {1'b0, quotient[24:1]} + {24'd0, up};
  always_ff @(posedge clk)
    if (en)
      y <= {
        1'b0, g_row[25].zero, g_row[25].sign, g_row[25].exponent + {9'd0, carry}, carry ? 24'h800000 : mant
      };

  // The callers check for infinite values themselves.
  logic unused;
  assign unused = ^{a[36], b[36], quotient[25], g_row[25].divisor};
endmodule

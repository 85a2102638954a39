// Quotient of two open numbers (from_f16.sv), rounded to 24 bits, to nearest, ties to even: one
// bit a cycle, for scales, of which a page needs two.
//
// Interface: `start` takes a and b; `done` is a pulse, and y stays until the next start. A zero
// divisor gives zero, which the callers want.
// Latency 27 cycles, initiation interval 27.
module fdiv (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,
    input  logic [36:0] a,
    input  logic [36:0] b,
    output logic        done,
    output logic [36:0] y
);
  logic [4:0] left;
  logic busy, zero, sign;
  logic [9:0] exponent;
  logic [24:0] rest, quotient, diff;
  logic [23:0] divisor;
  logic fits, up, carry;
  logic [23:0] mant;

  assign diff = rest - {1'b0, divisor};
  assign fits = rest >= {1'b0, divisor};
  assign up = quotient[0] && (quotient[1] || rest != 25'd0);
  assign {carry, mant} = {1'b0, quotient[24:1]} + {24'd0, up};

  always_ff @(posedge clk) begin
    done <= 1'b0;
    if (start && !busy) begin
      busy <= 1'b1;
      left <= 5'd25;
      zero <= a[35] || b[35];
      sign <= a[34] ^ b[34];
      divisor <= b[23:0];
      quotient <= '0;
      // The first bit of the quotient is a one.
      rest <= (a[23:0] >= b[23:0]) ? {1'b0, a[23:0]} : {a[23:0], 1'b0};
      exponent <= a[33:24] - b[33:24] - {9'd0, a[23:0] < b[23:0]};
    end else if (busy && left != 5'd0) begin
      left <= left - 5'd1;
      quotient <= {quotient[23:0], fits};
      rest <= fits ? diff << 1 : rest << 1;
    end else if (busy) begin
      busy <= 1'b0;
      done <= 1'b1;
      y <= {1'b0, zero, sign, exponent + {9'd0, carry}, carry ? 24'h800000 : mant};
    end
    if (rst) begin
      busy <= 1'b0;
      done <= 1'b0;
    end
  end

  // Scales are finite, so the callers check for infinite values themselves.
  logic unused;
  assign unused = a[36] ^ b[36];
endmodule

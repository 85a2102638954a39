// An open number (from_f16.sv) rounded to a bfloat, to nearest, ties to even.
//
// Interface: a stalling pipeline, which moves while `en`. Infinite numbers and numbers that are too
// large give infinity.
// Latency 1 cycle, initiation interval 1.
module to_bf16 (
    input  logic        clk,
    input  logic        en,
    input  logic [36:0] x,
    output logic [15:0] bfloat
);
  logic signed [9:0] exponent;
  logic subnormal, vanishes, up, inexact;
  logic [3:0] shift;
  logic [31:0] shifted;
  logic [15:0] sum;

  assign exponent = x[33:24];
  assign subnormal = exponent < -10'sd126;
  assign vanishes = x[35] || exponent < -10'sd134;
  // Below 2^-126, a mantissa loses a bit for each step of the exponent.
  assign shift = subnormal ? 4'(-10'sd126 - exponent) : 4'd0;
  assign shifted = {x[23:0], 8'd0} >> shift;
  // Eight bits stay, bit 24 and up.
  assign inexact = |shifted[22:0];
  assign up = shifted[23] && (shifted[24] || inexact);
  // The leading one adds one to the exponent field, and so does a carry.
  assign sum = {1'b0, subnormal ? 8'd0 : 8'(exponent + 10'sd126), 7'd0} + {8'd0, shifted[31:24]}
      + {15'd0, up};

  always_ff @(posedge clk)
    if (en) begin
      if (x[36] || (!x[35] && (exponent > 10'sd127 || sum[15:7] > 9'd254))) bfloat <= {x[34], 15'h7f80};
      else if (vanishes) bfloat <= {x[34], 15'd0};
      else bfloat <= {x[34], sum[14:0]};
    end
endmodule

// Weights of four engines (SpecKV §3.5.5, eq. 5): w = α · Q + (1 - α) / L, with the depth Q of an
// engine's queue and the moving average L of its service time in cycles.
//
// α has eight fraction bits, 1 / L sixteen; a weight is rounded down to 1/256 and is at least 1/256.
// A queue of one request outweighs every latency unless α is small: eq. 5 adds a count and a rate.
//
// Interface: `served` is a pulse for an engine with the cycles of its request, which must be 1 or
// more. Weights follow by 22 cycles an engine, one engine after the other.
module wrr_weights (
    input  logic        clk,
    input  logic        rst,
    input  logic [8:0]  alpha,
    input  logic [31:0] depths,
    input  logic [3:0]  served,
    input  logic [63:0] cycles,
    output logic [67:0] weights
);
  // Averages with four fraction bits; each new time counts one sixteenth.
  logic [79:0] averages;
  for (genvar i = 0; i < 4; i++) begin : g_average
    logic [19:0] average;
    always_ff @(posedge clk) begin
      if (served[i]) average <= average - (average >> 4) + {4'd0, cycles[i*16+:16]};
      if (rst) average <= 20'd16;
    end
    assign averages[i*20+:20] = average;
  end

  // One divider for all: 2^16 / L, that is 2^20 / (16 · L), a bit a cycle.
  logic [1:0] engine;
  logic [4:0] bits;
  logic [20:0] rest, shifted;
  logic [20:0] quotient;
  logic [19:0] divisor;
  logic [33:0] sum;
  logic [1:0] following;
  assign following = engine + 2'd1;
  assign shifted = {rest[19:0], bits == 5'd21};
  assign sum = {25'd0, alpha} * {10'd0, depths[engine*8+:8], 16'd0}
      + {25'd0, 9'd256 - alpha} * {17'd0, quotient[16:0]};

  for (genvar i = 0; i < 4; i++) begin : g_weight
    logic [16:0] weight;
    always_ff @(posedge clk) begin
      if (bits == 5'd0 && engine == 2'(i)) weight <= (sum[32:16] == '0) ? 17'd1 : sum[32:16];
      if (rst) weight <= 17'd1;
    end
    assign weights[i*17+:17] = weight;
  end

  always_ff @(posedge clk) begin
    if (bits == 5'd0) begin
      engine <= engine + 2'd1;
      bits <= 5'd21;
      rest <= '0;
      quotient <= '0;
      divisor <= averages[following*20+:20];
    end else begin
      bits <= bits - 5'd1;
      rest <= (shifted >= {1'b0, divisor}) ? shifted - {1'b0, divisor} : shifted;
      quotient <= {quotient[19:0], shifted >= {1'b0, divisor}};
    end
    if (rst) begin
      engine <= '0;
      bits <= 5'd21;
      rest <= '0;
      quotient <= '0;
      divisor <= 20'd16;
    end
  end
  logic unused;
  assign unused = ^{quotient[20:17], sum[33], sum[15:0], rest[20]};
endmodule

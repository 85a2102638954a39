// The place of QPack's beats in a page: `[head][token / 16][pair of channels]`.
//
// Interface: `step` moves on to the next beat, `restart` to a page's first. Out: the pair's index in
// a table by head and pair, the group's number of tokens, and whether the pair is its last.
// Registered counters; initiation interval 1.
module qpack_walk (
    input  logic        clk,
    input  logic        rst,
    input  logic [15:0] dim,
    input  logic [15:0] tokens,
    input  logic        step,
    input  logic        restart,
    output logic [15:0] index,
    output logic [4:0]  here,
    output logic        ends
);
  logic [15:0] base, pair, token, rest;
  logic head_ends;

  assign rest = tokens - token;
  assign head_ends = rest <= 16'd16;
  assign ends = pair == (dim >> 1) - 16'd1;
  assign here = head_ends ? rest[4:0] : 5'd16;
  assign index = base + pair;

  always_ff @(posedge clk) begin
    if (step) begin
      pair <= ends ? '0 : pair + 16'd1;
      if (ends) token <= head_ends ? '0 : token + 16'd16;
      if (ends && head_ends) base <= base + (dim >> 1);
    end
    if (restart || rst) begin
      base  <= '0;
      pair  <= '0;
      token <= '0;
    end
  end
  logic unused;
  assign unused = dim[0];
endmodule

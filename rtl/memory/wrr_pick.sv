// Weighted round robin between four engines (SpecKV §3.5.5).
//
// A round gives each engine as many grants as its weight, and the engines take turns. When no engine
// that asks has a grant left, a new round begins at once.
//
// Interface: `asks` in, one hot `grants` out in the same cycle, none while `ready` is 0.
// Latency 0 cycles, initiation interval 1.
module wrr_pick (
    input  logic        clk,
    input  logic        rst,
    input  logic [67:0] weights,
    input  logic [3:0]  asks,
    input  logic        ready,
    output logic [3:0]  grants
);
  logic [67:0] credits, now;
  logic [3:0] able, has;
  logic [1:0] turn;
  logic renew;

  for (genvar i = 0; i < 4; i++) begin : g_has
    assign has[i] = asks[i] && credits[i*17+:17] != 17'd0;
  end
  assign renew = asks != 4'd0 && has == 4'd0;
  assign able = renew ? asks : has;
  assign now = renew ? weights : credits;

  // The first able engine from `turn` on.
  always_comb begin
    grants = 4'd0;
    for (int k = 3; k >= 0; k--) begin
      logic [1:0] engine;
      engine = turn + 2'(k);
      if (able[engine] && ready) grants = 4'd1 << engine;
    end
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < 4; i++)
      if (grants[i]) begin
        turn <= 2'(i + 1);
      end
    if (grants != 4'd0)
      credits <= {
        now[67:51] - {16'd0, grants[3]},
        now[50:34] - {16'd0, grants[2]},
        now[33:17] - {16'd0, grants[1]},
        now[16:0] - {16'd0, grants[0]}
      };
    if (rst) begin
      credits <= '0;
      turn <= '0;
    end
  end
endmodule

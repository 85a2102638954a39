// Answers of sixteen channels to four engines (SpecKV §3.5.1), the way back of channel_front.sv.
//
// Interface: an answer of each channel in, with a tag whose upper two bits are the engine; an answer
// of each engine out. An engine takes its channels by turns.
// Latency 1 cycle, initiation interval 1 for each engine.
module channel_back #(
    parameter int T = 4
) (
    input  logic                clk,
    input  logic                rst,
    input  logic [15:0]         s_valid,
    output logic [15:0]         s_ready,
    input  logic [16*(T+2)-1:0] s_tag,
    input  logic [16*512-1:0]   s_data,
    output logic [3:0]          m_valid,
    input  logic [3:0]          m_ready,
    output logic [4*T-1:0]      m_tag,
    output logic [4*512-1:0]    m_data
);
  logic [63:0] picks;

  for (genvar e = 0; e < 4; e++) begin : g_engine
    logic [15:0] asks, behind, pick;
    logic [3:0] turn;
    logic [511:0] data;
    logic [T-1:0] tag;
    logic valid, room;
    for (genvar c = 0; c < 16; c++) begin : g_ask
      assign asks[c] = s_valid[c] && s_tag[c*(T+2)+T+:2] == 2'(e);
    end
    // The first asking channel from `turn` on, or the first of all.
    assign behind = asks & (16'hffff << turn);
    assign pick = (behind != '0) ? behind & -behind : asks & -asks;
    assign room = !valid || m_ready[e];
    assign picks[e*16+:16] = room ? pick : 16'd0;
    always_comb begin
      data = '0;
      tag  = '0;
      for (int c = 0; c < 16; c++)
        if (pick[c]) begin
          data = data | s_data[c*512+:512];
          tag  = tag | s_tag[c*(T+2)+:T];
        end
    end
    always_ff @(posedge clk) begin
      if (room) begin
        valid <= asks != '0;
        m_data[e*512+:512] <= data;
        m_tag[e*T+:T] <= tag;
        for (int c = 0; c < 16; c++) if (pick[c]) turn <= 4'(c + 1);
      end
      if (rst) begin
        valid <= 1'b0;
        turn  <= '0;
      end
    end
    assign m_valid[e] = valid;
  end
  assign s_ready = picks[15:0] | picks[31:16] | picks[47:32] | picks[63:48];
endmodule

// Memory front end: requests of four engines to sixteen channels (SpecKV §3.5.1 and §3.5.5).
//
// Lines of 64 bytes lie on channels by turns. The channel's number is mixed with higher address
// bits, so that strides of 1 KiB use all channels. Each channel picks an engine by weighted round
// robin.
//
// Interface: a request of each engine in, address and tag; a request of each channel out, with the
// engine's number.
// Latency 1 cycle, initiation interval 1 for each channel and each engine.
module channel_front #(
    parameter int T = 4
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [67:0]        weights,
    input  logic [3:0]         s_valid,
    output logic [3:0]         s_ready,
    input  logic [4*64-1:0]    s_address,
    input  logic [4*T-1:0]     s_tag,
    output logic [15:0]        m_valid,
    input  logic [15:0]        m_ready,
    output logic [16*64-1:0]   m_address,
    output logic [16*(T+2)-1:0] m_tag
);
  logic [15:0] channels;
  logic [63:0] grants;

  for (genvar e = 0; e < 4; e++) begin : g_engine
    logic [11:0] line;
    logic [15:0] taken;
    assign line = s_address[e*64+6+:12];
    assign channels[e*4+:4] = line[3:0] ^ line[7:4] ^ line[11:8];
    for (genvar c = 0; c < 16; c++) begin : g_taken
      assign taken[c] = grants[c*4+e];
    end
    assign s_ready[e] = |taken;
  end

  for (genvar c = 0; c < 16; c++) begin : g_channel
    logic [3:0] asks, granted;
    logic [63:0] address;
    logic [T+1:0] tag;
    for (genvar e = 0; e < 4; e++) begin : g_ask
      assign asks[e] = s_valid[e] && channels[e*4+:4] == 4'(c);
    end
    wrr_pick pick (
        .clk,
        .rst,
        .weights,
        .asks,
        .ready(!m_valid[c] || m_ready[c]),
        .grants(granted)
    );
    assign grants[c*4+:4] = granted;
    always_comb begin
      address = '0;
      tag = '0;
      for (int e = 0; e < 4; e++)
        if (granted[e]) begin
          address = address | s_address[e*64+:64];
          tag = tag | {2'(e), s_tag[e*T+:T]};
        end
    end
    logic valid;
    always_ff @(posedge clk) begin
      if (m_ready[c]) valid <= 1'b0;
      if (granted != 4'd0) begin
        valid <= 1'b1;
        m_address[c*64+:64] <= address;
        m_tag[c*(T+2)+:T+2] <= tag;
      end
      if (rst) valid <= 1'b0;
    end
    assign m_valid[c] = valid;
  end
endmodule

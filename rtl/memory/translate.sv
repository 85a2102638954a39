// Translates the lists of two DMA engines by one ATU: splits pieces at page ends, and asks for each
// part.
//
// An engine asks only if its queue has room for the answer, so that neither waits for the other.
//
// Interface: for each of two engines, pieces with virtual addresses in (page_split.sv), and parts
// with physical addresses out, or with `m_fault`. `w_`, `r_`, `root`, `flush` and `misses` are those
// of atu.sv. Engines take turns.
// Latency 5 cycles if the translation is kept, initiation interval 1.
module translate (
    input  logic         clk,
    input  logic         rst,
    input  logic         flush,
    input  logic [51:0]  root,
    input  logic [1:0]   s_valid,
    output logic [1:0]   s_ready,
    input  logic [77:0]  s_address,
    input  logic [31:0]  s_beats,
    input  logic [1:0]   s_last,
    output logic [1:0]   m_valid,
    input  logic [1:0]   m_ready,
    output logic [127:0] m_address,
    output logic [13:0]  m_beats,
    output logic [1:0]   m_last,
    output logic [1:0]   m_fault,
    output logic         w_valid,
    input  logic         w_ready,
    output logic [63:0]  w_address,
    input  logic         r_valid,
    output logic         r_ready,
    input  logic [63:0]  r_entry,
    output logic [31:0]  misses
);
  logic [1:0] part_valid, part_ready, able;
  logic [77:0] part_address;
  logic [13:0] part_beats;
  logic [1:0] part_last;
  logic turn, who, ask_ready, answered, answer_fault;
  logic [63:0] answer_address;
  logic [8:0] answer_tag;

  // The engine whose turn it is, or the other.
  assign who = able[turn] ? turn : !turn;
  always_ff @(posedge clk) begin
    if (able != 2'd0 && ask_ready) turn <= !who;
    if (rst) turn <= 1'b0;
  end

  atu #(
      .T(9)
  ) unit (
      .clk,
      .rst,
      .flush,
      .root,
      .s_valid(able != 2'd0),
      .s_ready(ask_ready),
      .s_address(part_address[who*39+:39]),
      .s_tag({who, part_last[who], part_beats[who*7+:7]}),
      .m_valid(answered),
      .m_ready(1'b1),
      .m_address(answer_address),
      .m_tag(answer_tag),
      .m_fault(answer_fault),
      .w_valid,
      .w_ready,
      .w_address,
      .r_valid,
      .r_ready,
      .r_entry,
      .misses
  );

  for (genvar e = 0; e < 2; e++) begin : g_engine
    // Answers that are queued or under way.
    logic [2:0] owed;
    logic asks, leaves, unused_room;
    logic [3:0] unused_level;
    assign able[e] = part_valid[e] && owed < 3'd4;
    assign part_ready[e] = ask_ready && able[e] && who == 1'(e);
    assign asks = part_valid[e] && part_ready[e];
    assign leaves = m_valid[e] && m_ready[e];
    always_ff @(posedge clk) begin
      owed <= owed + {2'd0, asks} - {2'd0, leaves};
      if (rst) owed <= '0;
    end
    page_split split (
        .clk,
        .rst,
        .s_valid(s_valid[e]),
        .s_ready(s_ready[e]),
        .s_address(s_address[e*39+:39]),
        .s_beats(s_beats[e*16+:16]),
        .s_last(s_last[e]),
        .m_valid(part_valid[e]),
        .m_ready(part_ready[e]),
        .m_address(part_address[e*39+:39]),
        .m_beats(part_beats[e*7+:7]),
        .m_last(part_last[e])
    );
    fifo #(
        .W(73),
        .DEPTH(8)
    ) parts (
        .clk,
        .rst,
        .s_valid(answered && answer_tag[8] == 1'(e)),
        .s_ready(unused_room),
        .s_data({answer_fault, answer_tag[7:0], answer_address}),
        .m_valid(m_valid[e]),
        .m_ready(m_ready[e]),
        .m_data({m_fault[e], m_last[e], m_beats[e*7+:7], m_address[e*64+:64]}),
        .level(unused_level)
    );
  end
endmodule

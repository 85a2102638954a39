// The payload of a page: header, then differences, with zero runs shortened if the page says so
// (SpecKV Algorithm 2, lines 15-16). This is the run-token stage.
//
// Interface: beats of 32 differences with a count in, with what stays for a page: `s_runs`, the
// scale, and `s_bad` for a page without payload. Beats of 64 bytes with a count out.
// Latency 12 cycles for a beat that fills the output or is the last. Initiation interval 1: 32 codes,
// one beat of halves, take at most 50 bytes. A page takes one cycle for its header, and sometimes one
// for its last bytes.
module run_emit (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [255:0] s_codes,
    input  logic [5:0]   s_count,
    input  logic         s_first,
    input  logic         s_last,
    input  logic         s_bad,
    input  logic         s_runs,
    input  logic [31:0]  s_scale,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  logic marked, mark_ready, last, first, bad, runs, titled, title;
  logic [255:0] codes, lengths;
  logic [31:0] literal, ends, scale;

  run_mark #(
      .U(35)
  ) marks (
      .clk,
      .rst,
      .raw(!s_runs),
      .s_valid,
      .s_ready,
      .s_codes,
      .s_count,
      .s_last,
      .s_user({s_first, s_bad, s_runs, s_scale}),
      .m_valid(marked),
      .m_ready(mark_ready),
      .m_codes(codes),
      .m_literal(literal),
      .m_ends(ends),
      .m_lengths(lengths),
      .m_last(last),
      .m_user({first, bad, runs, scale})
  );

  // Each code has two places: itself or the zero of a token, and the token's length. The header
  // goes first, before the first beat.
  logic [511:0] slots;
  logic [63:0] keep;
  logic en, packed_valid, packed_last, packed_bad, pack_ready;
  logic [511:0] packed_bytes;
  logic [6:0] packed_count;

  assign title = first && !titled;
  assign en = !packed_valid || pack_ready;
  assign mark_ready = en && !title;

  for (genvar i = 0; i < 32; i++) begin : g_slot
    if (i == 0) begin : g_a
      assign slots[15:0] = title ? {scale[7:0], runs ? 8'd2 : 8'd1} : {lengths[7:0], codes[7:0]};
    end else if (i == 1) begin : g_b
      assign slots[31:16] = title ? scale[23:8] : {lengths[15:8], codes[15:8]};
    end else if (i == 2) begin : g_c
      assign slots[47:32] = title ? {8'd0, scale[31:24]} : {lengths[23:16], codes[23:16]};
    end else begin : g_d
      assign slots[i*16+:16] = {lengths[i*8+:8], codes[i*8+:8]};
    end
    assign keep[2*i] = !bad && (title ? i <= 2 : literal[i] || ends[i]);
    assign keep[2*i+1] = !bad && (title ? i < 2 : ends[i]);
  end

  always_ff @(posedge clk) begin
    if (marked && en) titled <= title ? 1'b1 : !last && titled;
    if (rst) titled <= 1'b0;
  end

  compact #(
      .N(64),
      .W(8),
      .U(2)
  ) shifter (
      .clk,
      .rst,
      .en,
      .s_valid(marked),
      .s_data(slots),
      .s_keep(keep),
      .s_user({bad, last && !title}),
      .m_valid(packed_valid),
      .m_data(packed_bytes),
      .m_count(packed_count),
      .m_user({packed_bad, packed_last})
  );
  byte_pack joiner (
      .clk,
      .rst,
      .s_valid(packed_valid),
      .s_ready(pack_ready),
      .s_data (packed_bytes),
      .s_count(packed_count),
      .s_last (packed_last),
      .s_user (packed_bad),
      .m_valid,
      .m_ready,
      .m_data,
      .m_count,
      .m_last,
      .m_user (m_bad)
  );
endmodule

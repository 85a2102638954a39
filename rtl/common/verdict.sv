// Adds a page's verdict, which is known behind its last beat elsewhere, to its last beat here.
//
// Interface: `known` is a pulse with the verdict of a page, in the order of pages, at most seven
// ahead; a stream with marked last beats passes, and a last beat waits for its verdict.
// Latency 0 cycles, initiation interval 1.
module verdict (
    input  logic clk,
    input  logic rst,
    input  logic known,
    input  logic bad,
    output logic room,
    input  logic s_valid,
    output logic s_ready,
    input  logic s_last,
    input  logic s_bad,
    output logic m_valid,
    input  logic m_ready,
    output logic m_bad
);
  logic has, one_bad;
  logic [3:0] unused;
  fifo #(
      .W(1),
      .DEPTH(8)
  ) verdicts (
      .clk,
      .rst,
      .s_valid(known),
      .s_ready(room),
      .s_data(bad),
      .m_valid(has),
      .m_ready(m_valid && m_ready && s_last),
      .m_data(one_bad),
      .level(unused)
  );
  assign m_valid = s_valid && (!s_last || has);
  assign s_ready = m_ready && (!s_last || has);
  assign m_bad   = s_bad || (s_last && one_bad);
endmodule

// Lets pages of one size through. A page of another size ends where it should or does, and is
// marked, so that modules behind never wait for it and never see a beat that is not full inside it.
//
// Interface: beats of 64 bytes with a count of bytes in, of which a page's last is marked; beats of
// 32 halves with a count out. `values` halves are a page; more than DEPTH beats are never one.
// No page has the right size while `supported` is 0. `m_bad` comes with the last beat: the page has
// another size, an odd number of bytes, or a beat inside it that is not full.
// Latency 0 cycles, initiation interval 1; the rest of a page that is too long is skipped.
module page_guard #(
    parameter int DEPTH = 1024
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         supported,
    input  logic [31:0]  values,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_bytes,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [5:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  logic [31:0] sent, left;
  logic skips, fits, is_end, wrong;

  assign fits = supported && values <= 32'(DEPTH * 32);
  assign left = values - sent;
  assign is_end = left <= 32'd32;
  // Each beat is full, or the last with just what is left.
  assign wrong = !fits || s_last != is_end || {26'd0, s_bytes[6:1]} != (is_end ? left : 32'd32) || s_bytes[0];

  assign m_valid = s_valid && !skips;
  assign s_ready = m_ready || skips;
  assign m_data  = s_data;
  assign m_count = (s_bytes[6:1] == 6'd0) ? 6'd1 : s_bytes[6:1];
  assign m_last  = s_last || wrong;
  assign m_bad   = wrong;

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      if (skips) skips <= !s_last;
      else begin
        sent  <= m_last ? '0 : sent + 32'd32;
        skips <= wrong && !s_last;
      end
    end
    if (rst) begin
      sent  <= '0;
      skips <= 1'b0;
    end
  end
endmodule

// The largest magnitude of a page of halves (SpecKV §3.5.2, Algorithm 2, line 3).
//
// Magnitudes of halves are in the order of their bits, so the maximum is one of integers; a value
// that is not finite is larger than all others.
//
// Interface: beats of 32 halves with a count of values in; the same beats out, and after the last
// beat of a page its maximum, 15 bits.
// Latency 2 cycles, the maximum 3 cycles after the last beat; initiation interval 1.
module page_max (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [5:0]   s_count,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [5:0]   m_count,
    output logic         m_last,
    output logic         max_valid,
    input  logic         max_ready,
    output logic [14:0]  max_value
);
  logic en, a_valid, a_last, q_valid, done;
  logic [511:0] a_data;
  logic [5:0] a_count;
  logic [14:0] a_max, m_max, best, page_best;

  // Row k of the tree holds the maxima of 2^k values each.
  for (genvar k = 0; k <= 5; k++) begin : g_row
    logic [(32>>k)*15-1:0] row;
    for (genvar i = 0; i < (32 >> k); i++) begin : g_max
      if (k == 0) begin : g_value
        assign row[i*15+:15] = (6'(i) < s_count) ? s_data[i*16+:15] : 15'd0;
      end else begin : g_pair
        logic [14:0] left, right;
        assign left = g_row[k-1].row[2*i*15+:15];
        assign right = g_row[k-1].row[(2*i+1)*15+:15];
        assign row[i*15+:15] = (left > right) ? left : right;
      end
    end
  end

  // A last beat waits until the maximum of the page before was taken.
  assign m_valid = q_valid && !(m_last && done && !max_ready);
  assign en = !q_valid || (m_valid && m_ready);
  assign s_ready = en;
  assign page_best = (m_max > best) ? m_max : best;
  assign max_valid = done;

  always_ff @(posedge clk) begin
    if (max_ready) done <= 1'b0;
    if (en) begin
      a_valid <= s_valid;
      a_data  <= s_data;
      a_count <= s_count;
      a_last  <= s_last;
      a_max   <= g_row[5].row;
      q_valid <= a_valid;
      m_data  <= a_data;
      m_count <= a_count;
      m_last  <= a_last;
      m_max   <= a_max;
    end
    if (m_valid && m_ready) begin
      best <= m_last ? 15'd0 : page_best;
      if (m_last) begin
        max_value <= page_best;
        done <= 1'b1;
      end
    end
    if (rst) begin
      a_valid <= 1'b0;
      q_valid <= 1'b0;
      done <= 1'b0;
      best <= '0;
    end
  end
endmodule

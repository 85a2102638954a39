// Joins chunks of 0 to 64 bytes to beats of 64 bytes.
//
// Interface: chunks with a byte count in, of which the last of a page is marked; beats out, with
// a byte count, less than 64 only in the last beat of a page. `user` of the last chunk goes to the
// last beat. A last chunk without bytes gives a beat with the count 0 if a full beat left before it
// or the page has no bytes.
// Latency 3 cycles after the chunk that fills a beat. Initiation interval 1; a last chunk that
// does not fit its beat takes one cycle more.
module byte_pack (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    input  logic         s_user,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_user
);
  // Stage a knows the place of a chunk, stage b has shifted it, stage c holds an unfinished beat.
  logic a_valid, a_last, a_user, b_valid, b_last, b_user, spill, en;
  logic [511:0] a_data, rest;
  logic [6:0] a_count, b_total;
  logic [5:0] a_place, place;
  logic [1023:0] b_data, joined, shifted;

  assign en = !m_valid || m_ready;
  // A spill repeats the last chunk's stage b for the bytes beyond the beat.
  assign s_ready = en && !spill;
  assign shifted = {512'd0, a_data} << {a_place, 3'b000};
  assign joined = b_data | {512'd0, rest};

  logic [511:0] masked;
  for (genvar i = 0; i < 64; i++) begin : g_mask
    assign masked[i*8+:8] = (7'(i) < s_count) ? s_data[i*8+:8] : 8'd0;
  end

  // Bytes of the unfinished beat and the chunk together; at most 127.
  assign spill = b_valid && b_last && b_total > 7'd64;

  always_ff @(posedge clk) begin
    if (en && !spill) begin
      a_valid <= s_valid;
      a_data  <= masked;
      a_count <= s_count;
      a_last  <= s_last;
      a_user  <= s_user;
      a_place <= place;
      if (s_valid) place <= s_last ? 6'd0 : place + s_count[5:0];
      b_valid <= a_valid;
      b_data  <= shifted;
      b_total <= {1'b0, a_place} + a_count;
      b_last  <= a_last;
      b_user  <= a_user;
    end
    if (en) begin
      m_valid <= b_valid && (b_last || b_total >= 7'd64);
      m_data  <= joined[511:0];
      m_count <= (b_total >= 7'd64) ? 7'd64 : b_total;
      m_last  <= b_last && !spill;
      m_user  <= b_user && b_last && !spill;
      if (b_valid) begin
        rest <= (b_total >= 7'd64) ? joined[1023:512] : joined[511:0];
        if (spill) begin
          b_data  <= '0;
          b_total <= b_total - 7'd64;
        end else if (b_last) rest <= '0;
      end
    end
    if (rst) begin
      a_valid <= 1'b0;
      b_valid <= 1'b0;
      m_valid <= 1'b0;
      place <= '0;
      rest <= '0;
    end
  end
endmodule

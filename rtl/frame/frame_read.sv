// Removes and checks the header of a frame (crates/codec/src/frame.rs): the payload leaves while
// its checksum is computed, and its last beat says whether the frame is sound.
//
// Interface: beats of 64 bytes with a count in, of which a frame's last is marked; `header` is what
// bytes 0 to 15 must be, or with `takes_raw` those of a raw page of the same kind. The payload's beats
// out, with a count; `m_raw`: the frame is raw. `m_bad` in the last beat: the frame is cut, longer than
// it says, of another kind, or its checksum is wrong.
// Latency 3 cycles, of a last beat 6. Initiation interval 1 within a frame; a frame takes its beats
// and two cycles.
module frame_read (
    input  logic         clk,
    input  logic         rst,
    input  logic [127:0] header,
    input  logic         takes_raw,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_raw,
    output logic         m_bad
);
  logic [511:0] window;
  logic [6:0] avail, take;
  logic ends, more, drop;
  byte_unpack unpack (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .window,
      .avail,
      .ends,
      .more,
      .take,
      .drop
  );

  // The header, then payload. A full beat leaves when it is known whether it is the last.
  logic body, wrong, go, room, finishes, whole, raw, is_raw;
  logic [31:0] length, left, expected, title_state, seed;
  assign whole = avail >= 7'd24;
  // Codec 0, version 1, no profile.
  assign is_raw = takes_raw && window[127:0] == {32'd0, header[95:16], 8'd1, 8'd0};
  assign finishes = body && ends;
  assign go = room && (body ? (ends || more) : (ends || whole));
  always_comb begin
    take = '0;
    drop = 1'b0;
    if (go) begin
      take = body ? avail : (whole ? 7'd24 : avail);
      drop = finishes;
    end
  end

  crc32_beat #(
      .BYTES(20)
  ) title_bits (
      .data (window[159:0] ^ 160'hffffffff),
      .state(title_state)
  );

  logic fire;
  assign fire = go && body;
  always_ff @(posedge clk) begin
    if (go && !body) begin
      body <= 1'b1;
      wrong <= !whole || (window[127:0] != header && !is_raw);
      raw <= is_raw;
      length <= window[159:128];
      expected <= window[191:160];
      seed <= title_state;
    end
    if (fire && finishes) body <= 1'b0;
    if (rst) body <= 1'b0;
  end

  // Bytes that the header promises and that did not leave yet.
  logic [31:0] sent;
  assign left = length - sent;
  logic summed;
  logic [31:0] state;
  always_ff @(posedge clk) begin
    if (fire) sent <= finishes ? '0 : sent + {25'd0, avail};
    if (rst) sent <= '0;
  end

  crc32_stream payload (
      .clk,
      .rst,
      .seed,
      .fire,
      .data(window),
      .count(avail),
      .last(finishes),
      .done(summed),
      .state
  );

  // Verdicts travel beside the checksum, three cycles.
  logic [2:0] wrongs;
  logic [95:0] sums;
  always_ff @(posedge clk) begin
    wrongs <= {wrongs[1:0], wrong || left != {25'd0, avail}};
    sums <= {sums[63:0], expected};
  end

  logic b_valid, b_last, v_valid, v_bad, unused_room;
  logic [3:0] unused_level, unused_level_v;
  fifo #(
      .W(521),
      .DEPTH(8)
  ) beats (
      .clk,
      .rst,
      .s_valid(fire),
      .s_ready(room),
      .s_data({raw, finishes, avail, window}),
      .m_valid(b_valid),
      .m_ready(m_valid && m_ready),
      .m_data({m_raw, b_last, m_count, m_data}),
      .level(unused_level)
  );
  // At most eight frames' last beats wait, so the verdicts have room.
  fifo #(
      .W(1),
      .DEPTH(8)
  ) verdicts (
      .clk,
      .rst,
      .s_valid(summed),
      .s_ready(unused_room),
      .s_data(wrongs[2] || sums[95:64] != ~state),
      .m_valid(v_valid),
      .m_ready(m_valid && m_ready && m_last),
      .m_data(v_bad),
      .level(unused_level_v)
  );
  assign m_valid = b_valid && (!b_last || v_valid);
  assign m_last = b_last;
  assign m_bad = b_last && v_bad;
endmodule

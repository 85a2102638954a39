// Gives the next bytes of a page, of which the reader takes any number up to 64 a cycle.
//
// Interface: beats with a byte count in, of which the last of a page is marked; a window of the
// next 64 bytes out. `avail` bytes of the window are valid (0 to 64, more may follow); `ends` says
// that the page has no byte behind them, and `more` that it has some. `take` bytes leave at the end
// of the cycle. `drop` forgets the page's rest, which includes beats that did not arrive yet. A
// page with `ends` and `avail` 0 is over, and `drop` goes on to the next.
// Latency 1 cycle, initiation interval 1.
module byte_unpack (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    output logic [511:0] window,
    output logic [6:0]   avail,
    output logic         ends,
    output logic         more,
    input  logic [6:0]   take,
    input  logic         drop
);
  logic [1023:0] bytes, left;
  logic [7:0] held, kept;
  logic last, dropping;

  assign window = bytes[511:0];
  assign avail = (dropping || held > 8'd64) ? (dropping ? 7'd0 : 7'd64) : held[6:0];
  assign more = !dropping && held > 8'd64;
  assign ends = !dropping && last && held <= 8'd64;

  assign kept = held - {1'b0, take};
  assign left = bytes >> {take, 3'b000};
  // The end of a page waits for `drop`, so that pages never share the window.
  assign s_ready = dropping || (!last && kept <= 8'd64);

  logic [511:0] masked;
  for (genvar i = 0; i < 64; i++) begin : g_mask
    assign masked[i*8+:8] = (7'(i) < s_count) ? s_data[i*8+:8] : 8'd0;
  end

  always_ff @(posedge clk) begin
    if (dropping) begin
      if (s_valid && s_last) dropping <= 1'b0;
    end else if (drop) begin
      bytes <= '0;
      held <= '0;
      last <= 1'b0;
      // If the last beat has not arrived, it is still to be thrown away.
      dropping <= !last && !(s_valid && s_ready && s_last);
    end else begin
      bytes <= left;
      held  <= kept;
      if (s_valid && s_ready) begin
        bytes <= left | ({512'd0, masked} << {kept[6:0], 3'b000});
        held  <= kept + {1'b0, s_count};
        last  <= s_last;
      end
    end
    if (rst) begin
      bytes <= '0;
      held <= '0;
      last <= 1'b0;
      dropping <= 1'b0;
    end
  end
endmodule

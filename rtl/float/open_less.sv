// Whether one open number (from_f16.sv) is less than another. Zeros of both signs are equal.
//
// Interface: combinational.
module open_less (
    input  logic [36:0] a,
    input  logic [36:0] b,
    output logic        less
);
  logic a_minus, b_minus, smaller, larger;

  assign a_minus = a[34] && !a[35];
  assign b_minus = b[34] && !b[35];
  always_comb begin
    // Magnitudes.
    if (a[35] || b[35]) begin
      smaller = a[35] && !b[35];
      larger  = b[35] && !a[35];
    end else begin
      smaller = $signed(a[33:24]) < $signed(b[33:24]) || (a[33:24] == b[33:24] && a[23:0] < b[23:0]);
      larger  = $signed(a[33:24]) > $signed(b[33:24]) || (a[33:24] == b[33:24] && a[23:0] > b[23:0]);
    end
    if (a_minus != b_minus) less = a_minus;
    else less = a_minus ? larger : smaller;
  end
  logic unused;
  assign unused = a[36] ^ b[36];
endmodule

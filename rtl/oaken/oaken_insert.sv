// Zero-insert shifter: gives each channel of half a block the entry of its outlier, and zeros to
// the others (Oaken §5.2, Figure 9b).
//
// Interface: combinational. Up to 64 entries of a block in; for each of 32 channels out whether it
// is an outlier, its group's bit and its fifth bit. Entries of an encoder have different places.
module oaken_insert (
    input  logic [511:0] entries,
    input  logic [6:0]   count,
    input  logic         half,
    output logic [31:0]  outlier,
    output logic [31:0]  inner,
    output logic [31:0]  fifth
);
  logic [63:0] place, outliers, inners, fifths;
  always_comb begin
    outliers = '0;
    inners   = '0;
    fifths   = '0;
    for (int i = 0; i < 64; i++) begin
      place = (7'(i) < count) ? 64'd1 << entries[i*8+:6] : 64'd0;
      outliers = outliers | place;
      if (entries[i*8+6]) inners = inners | place;
      if (entries[i*8+7]) fifths = fifths | place;
    end
  end
  assign outlier = half ? outliers[63:32] : outliers[31:0];
  assign inner = half ? inners[63:32] : inners[31:0];
  assign fifth = half ? fifths[63:32] : fifths[31:0];
endmodule

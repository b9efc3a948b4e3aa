package provision

import (
	"os"
	"reflect"
	"testing"
)

// TestEachBit has each bit of a record turn over: the driver is not asked to delete another volume, nor one that is to
// stay.
func TestEachBit(t *testing.T) {
	j := journal{t.TempDir()}
	c := claim("a")
	c.Class.Driver, c.Class.Retain = "csi.example.com", true
	if err := j.keep(&record{Version: 1, Kind: Volume, Claim: c, Handle: "vol-17", Bytes: 1 << 20, Ready: true}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(j.path(c.name(Volume)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := decode(text, c.name(Volume))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(text) {
		text[i/8] ^= 1 << (i % 8)
		if got, err := decode(text, c.name(Volume)); err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("bit %d: %s says %+v", i, text, got)
		}
		text[i/8] ^= 1 << (i % 8)
	}
}

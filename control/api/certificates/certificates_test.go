package certificates

import (
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
)

// signed is a request for a certificate of an RSA key of so many bits, with a signature that is none.
func signed(t *testing.T, bits int) []byte {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n.Sub(n, big.NewInt(1)), E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	type info struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	der, err := asn1.Marshal(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		info{0, asn1.RawValue{Tag: asn1.TagSequence, Class: asn1.ClassUniversal, IsCompound: true}, asn1.RawValue{FullBytes: key}, nil},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, (bits+7)/8), BitLength: (bits + 7) / 8 * 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestHugeKeys sends requests whose keys are of so many bits that it takes seconds or hours to look at the signature.
func TestHugeKeys(t *testing.T) {
	t.Parallel()
	for bits, want := range map[int]string{8192: "verification error", 8200: "at most 8192 bits", 100_000: "at most 8192 bits", 8_000_000: "at most 8192 bits"} {
		if _, err := Parse(signed(t, bits)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %d bits: %v", bits, err)
		}
	}
}

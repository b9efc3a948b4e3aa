package resource

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestExpressions has expressions be refused that cannot be compiled, cost more than they may, or have numbers in them
// that take hours to calculate, however these are put together.
func TestExpressions(t *testing.T) {
	path := field.NewPath("x")
	for text, want := range map[string]string{
		`device.driver == "d"`:                                           "",
		`device.attributes["d"].model == "a"`:                            "",
		`device.capacity["d"].memory.compareTo(quantity("10Gi")) >= 0`:   "",
		`isQuantity(device.attributes["d"].size)`:                        "",
		`isQuantity("1e99") && device.driver == "d"`:                     "",
		`["a"].exists(device, device == "a")`:                            "",
		`device.driver`:                                                  "must evaluate to bool",
		`device.`:                                                        "compilation failed",
		`nonsense(1)`:                                                    "compilation failed",
		strings.Repeat("a", 11<<10):                                      "Too long",
		`isQuantity("1e-99999999")`:                                      "exponent",
		`device.capacity["d"].m.compareTo(quantity("1e999999999")) >= 0`: "exponent",
		`isQuantity("1e-" + "99999999")`:                                 "exponent",
		`["1e-99999999"].all(x, isQuantity(x))`:                          "exponent",
		`["1e-99999999"].all(device, isQuantity(device))`:                "exponent",
		`isQuantity(device.driver == "d" ? "1e-99999999" : "1")`:         "exponent",
		`isQuantity(device.attributes["d"].size + "e-99999999")`:         "exponent",
		`cel.bind(device, "1e-99999999", isQuantity(device))`:            "exponent",
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a+b+c+d+e > 0)))))`: "cost limit",
	} {
		errs := expression(text, path)
		if want == "" && len(errs) > 0 || want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), want)) {
			t.Errorf("%.80s: %v, want %q", text, errs, want)
		}
	}
}

package apiserver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/berth-node/berth/internal/quantity"
)

// Expressions of CEL make quantities of text, too: quantity(self.size) in a rule of a CustomResourceDefinition is
// calculated from what anybody writes who may create such an object, and what it costs is reckoned by the length of the
// text. There is one environment for all that have expressions (definitions, policies, webhooks, authentication), which
// the library makes and keeps, and nobody can hand it another. So what it has of quantities is replaced in it.

// boundExpressions has no expression calculate a costly quantity. It comes before the first that is compiled.
var boundExpressions = sync.OnceValue(func() error {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	bound, err := base.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			// Of an overload of the same name and signature the latter implementation counts.
			cel.Function("quantity", cel.Overload("string_to_quantity",
				[]*cel.Type{cel.StringType}, apiservercel.QuantityType, cel.UnaryBinding(toQuantity))),
			cel.Function("isQuantity", cel.Overload("is_quantity_string",
				[]*cel.Type{cel.StringType}, cel.BoolType, cel.UnaryBinding(isQuantity))),
		},
	})
	if err != nil {
		return fmt.Errorf("bound quantities in expressions: %w", err)
	}
	*base = *bound
	return nil
})

var errCostlyQuantity = errors.New("quantity has more than 64 digits, or an exponent beyond -99 to 99")

func toQuantity(arg ref.Val) ref.Val {
	q, err := parseQuantity(arg)
	if err != nil {
		return types.WrapErr(err)
	}
	return apiservercel.Quantity{Quantity: q}
}

func isQuantity(arg ref.Val) ref.Val {
	_, err := parseQuantity(arg)
	return types.Bool(err == nil)
}

func parseQuantity(arg ref.Val) (*resource.Quantity, error) {
	text, ok := arg.Value().(string)
	if !ok {
		return nil, errors.New("quantity is no string")
	}
	if quantity.Costly(text) {
		return nil, errCostlyQuantity
	}
	q, err := resource.ParseQuantity(text)
	return &q, err
}

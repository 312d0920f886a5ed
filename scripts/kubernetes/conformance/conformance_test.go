// Package conformance runs the Gateway API's conformance suite, against the cluster of the environment's KUBECONFIG.
package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
)

// The addresses that Services of the type LoadBalancer get; the cluster has no other load balancer.
const addressPrefix = "10.251.0."

func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	lengthen(&options.TimeoutConfig)
	clientset, err := kubernetes.NewForConfig(options.RestConfig)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	// Tests that run in parallel begin when this function has returned.
	t.Cleanup(cancel)
	assigner := &assigner{client: clientset, prefix: addressPrefix}
	assigner.start(ctx)
	conformance.RunConformanceWithOptions(t, options)
}

// lengthen gives everything more time than the suite does: nodes, Pods and the suite share the cores of one machine.
func lengthen(timeouts *config.TimeoutConfig) {
	timeouts.CreateTimeout = 2 * time.Minute
	timeouts.DeleteTimeout = time.Minute
	timeouts.GetTimeout = time.Minute
	timeouts.ManifestFetchTimeout = time.Minute
	timeouts.MaxTimeToConsistency = 90 * time.Second
	timeouts.NamespacesMustBeReady = 10 * time.Minute
	timeouts.DefaultTestTimeout = 4 * time.Minute
}

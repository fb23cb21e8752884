/** Catches a fault of a page, so that the frame and the other pages still work. */

import { Component, type ReactNode } from "react";

import { Page } from "../parts/page";
import { Failure } from "../parts/states";

interface FaultState {
  readonly error: Error | null;
}

export class PageFault extends Component<{ children: ReactNode }, FaultState> {
  override state: FaultState = { error: null };

  static getDerivedStateFromError(error: Error): FaultState {
    return { error };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <Page title="This page failed">
        <Failure
          error={this.state.error}
          works="The other pages work, and so do the commands of corral. Nothing that was asked is lost."
          onRetry={() => this.setState({ error: null })}
        />
      </Page>
    );
  }
}

/** The session ended while somebody worked. The page stays as it is; what was asked goes on after signing in. */

import { Button } from "../parts/button";
import { Dialog } from "../parts/dialog";
import { useAccess } from "./session";
import { SignInForm } from "./sign-in-form";

export function SignInAgain() {
  const { leave } = useAccess();
  return (
    <Dialog
      title="Your session has ended"
      onClose={() => undefined}
      isBinding
      footer={
        <Button look="quiet" onPress={leave}>
          Leave without signing in
        </Button>
      }
    >
      <p>Sign in to go on. Nothing is lost: what you asked for is sent as soon as you have.</p>
      <SignInForm label="Sign in and go on" />
    </Dialog>
  );
}
